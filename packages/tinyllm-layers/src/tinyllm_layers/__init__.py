"""The maths of a Qwen model with weights: layers that take an OpSet, and KV caches."""

from tinyllm_layers.dense_cache import DenseCache
from tinyllm_layers.embedding import Embedding
from tinyllm_layers.grouped_query_attention import Biases, GroupedQueryAttention
from tinyllm_layers.kv_cache import KVCache
from tinyllm_layers.layer_cache import LayerCache
from tinyllm_layers.mlp import MLP
from tinyllm_layers.moe import MoE
from tinyllm_layers.paged_cache import PagedCache
from tinyllm_layers.quantized_cache import QuantizedCache
from tinyllm_layers.ranks import Ranks
from tinyllm_layers.rms_norm import RMSNorm
from tinyllm_layers.rope import RoPE
from tinyllm_layers.rotating_cache import RotatingCache
from tinyllm_layers.run_blocks import run_blocks
from tinyllm_layers.sharded_embedding import ShardedEmbedding
from tinyllm_layers.simple_attention import SimpleMultiHeadAttention
from tinyllm_layers.transformer_block import TransformerBlock

__all__ = [
    "MLP",
    "Biases",
    "DenseCache",
    "Embedding",
    "GroupedQueryAttention",
    "KVCache",
    "LayerCache",
    "MoE",
    "PagedCache",
    "QuantizedCache",
    "RMSNorm",
    "Ranks",
    "RoPE",
    "RotatingCache",
    "ShardedEmbedding",
    "SimpleMultiHeadAttention",
    "TransformerBlock",
    "run_blocks",
]
