"""The functions that a Qwen model computes, on `mx.array`, written to be read.

Two OpSets implement the same contract. `REFERENCE` spells out the maths in array operations, and
`MLX` calls MLX's fast operations.
"""

from tinyllm_ops.fusion import Fusion
from tinyllm_ops.mlx import MLX
from tinyllm_ops.opset import Mask, OpSet, Positions
from tinyllm_ops.page_table import PageTable
from tinyllm_ops.phase import Phase, phase_of
from tinyllm_ops.quantization.tensor import QuantizationMode, QuantizedTensor, Weight, dequantize
from tinyllm_ops.reference import REFERENCE
from tinyllm_ops.reference.attention import (
    causal_mask,
    scaled_dot_product_attention_grouped,
    scaled_dot_product_attention_simple,
)
from tinyllm_ops.reference.delta_net import causal_conv, gated_delta, gated_rms_norm
from tinyllm_ops.reference.linear import expert_linear, linear
from tinyllm_ops.reference.paged_attention import paged_attention, write_pages
from tinyllm_ops.reference.quantize import quantize
from tinyllm_ops.reference.rope import norm_rope, rope
from tinyllm_ops.reference.rowwise import (
    argmax,
    embedding,
    log_probability,
    rms_norm,
    sigmoid,
    silu,
    softmax,
    swiglu,
    top_k,
)
from tinyllm_ops.rotary_frequencies import Yarn
from tinyllm_ops.state_table import NO_STATE, StateTable

__all__ = [
    "MLX",
    "NO_STATE",
    "REFERENCE",
    "Fusion",
    "Mask",
    "OpSet",
    "PageTable",
    "Phase",
    "Positions",
    "QuantizationMode",
    "QuantizedTensor",
    "StateTable",
    "Weight",
    "Yarn",
    "argmax",
    "causal_conv",
    "causal_mask",
    "dequantize",
    "embedding",
    "expert_linear",
    "gated_delta",
    "gated_rms_norm",
    "linear",
    "log_probability",
    "norm_rope",
    "paged_attention",
    "phase_of",
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
    "write_pages",
]
