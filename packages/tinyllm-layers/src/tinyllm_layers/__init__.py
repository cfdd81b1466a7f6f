"""Layers of Qwen models, which hold weights and compute with an OpSet, and their caches."""

from tinyllm_layers.attention import Biases, GroupedQueryAttention
from tinyllm_layers.backend import Backend, Stack, make_stack
from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import (
    AttentionCache,
    KVCache,
    LayerCache,
    SequenceCache,
    StateCache,
    StateShape,
    Zeros,
)
from tinyllm_layers.cache.dense import DenseCache
from tinyllm_layers.cache.paged import PagedCache
from tinyllm_layers.cache.quantized import QuantizedCache
from tinyllm_layers.cache.recurrent import RecurrentCache, RecurrentPool
from tinyllm_layers.cache.rotating import RotatingCache
from tinyllm_layers.communicator import SINGLE, Communicator, RankCommunicator
from tinyllm_layers.decoder import DecoderLayer, LayerStack, weights_of
from tinyllm_layers.embedding import Embedding
from tinyllm_layers.gated_attention import GatedAttention
from tinyllm_layers.gated_delta_net import GatedDeltaNet
from tinyllm_layers.mlp import MLP
from tinyllm_layers.moe import MoE
from tinyllm_layers.norm import RMSNorm
from tinyllm_layers.rope import RoPE
from tinyllm_layers.simple_attention import SimpleMultiHeadAttention

__all__ = [
    "MLP",
    "SINGLE",
    "AttentionCache",
    "Backend",
    "Batch",
    "Biases",
    "Communicator",
    "DecoderLayer",
    "DenseCache",
    "Embedding",
    "GatedAttention",
    "GatedDeltaNet",
    "GroupedQueryAttention",
    "KVCache",
    "LayerCache",
    "LayerStack",
    "MoE",
    "PagedCache",
    "QuantizedCache",
    "RMSNorm",
    "RankCommunicator",
    "RecurrentCache",
    "RecurrentPool",
    "RoPE",
    "RotatingCache",
    "SequenceCache",
    "SimpleMultiHeadAttention",
    "Stack",
    "StateCache",
    "StateShape",
    "Zeros",
    "make_stack",
    "weights_of",
]
