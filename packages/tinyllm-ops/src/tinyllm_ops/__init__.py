"""The functions that a Qwen model computes, on `mx.array`, written to be read.

`REFERENCE` is the maths in array operations, `MLX` the same contract through MLX's fast ones.
"""

from tinyllm_ops.argmax import argmax
from tinyllm_ops.attention import (
    scaled_dot_product_attention_grouped,
    scaled_dot_product_attention_simple,
)
from tinyllm_ops.attention_block import AttentionBlock
from tinyllm_ops.block import Block
from tinyllm_ops.causal_mask import causal_mask
from tinyllm_ops.contract import Weight
from tinyllm_ops.embedding import embedding
from tinyllm_ops.expert_linear import expert_linear
from tinyllm_ops.linear import linear
from tinyllm_ops.log_probability import log_probability
from tinyllm_ops.mlp_block import MlpBlock
from tinyllm_ops.mlx_fast import MLX
from tinyllm_ops.moe_block import MoeBlock
from tinyllm_ops.norm import Norm
from tinyllm_ops.opset import OpSet
from tinyllm_ops.paged_attention import paged_attention
from tinyllm_ops.paged_tokens import PagedTokens
from tinyllm_ops.positions import Positions
from tinyllm_ops.projection import Projection
from tinyllm_ops.quantization import dequantize, quantize
from tinyllm_ops.quantized_tensor import QuantizedTensor
from tinyllm_ops.reference import REFERENCE
from tinyllm_ops.rms_norm import rms_norm
from tinyllm_ops.rope import rope
from tinyllm_ops.rotary import Rotary
from tinyllm_ops.rotary_frequencies import Yarn
from tinyllm_ops.silu import sigmoid, silu, swiglu
from tinyllm_ops.softmax import softmax
from tinyllm_ops.top_k import top_k

__all__ = [
    "MLX",
    "REFERENCE",
    "AttentionBlock",
    "Block",
    "MlpBlock",
    "MoeBlock",
    "Norm",
    "OpSet",
    "PagedTokens",
    "Positions",
    "Projection",
    "QuantizedTensor",
    "Rotary",
    "Weight",
    "Yarn",
    "argmax",
    "causal_mask",
    "dequantize",
    "embedding",
    "expert_linear",
    "linear",
    "log_probability",
    "paged_attention",
    "quantize",
    "rms_norm",
    "rope",
    "scaled_dot_product_attention_grouped",
    "scaled_dot_product_attention_simple",
    "sigmoid",
    "silu",
    "softmax",
    "swiglu",
    "top_k",
]
