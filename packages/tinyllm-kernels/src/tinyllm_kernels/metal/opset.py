"""The OpSet of Metal kernels."""

from tinyllm_ops import MLX, Fusion, OpSet

from tinyllm_kernels.metal.attention import attention
from tinyllm_kernels.metal.causal_conv import causal_conv
from tinyllm_kernels.metal.embedding import embedding
from tinyllm_kernels.metal.expert_linear import expert_linear
from tinyllm_kernels.metal.gated_delta import gated_delta
from tinyllm_kernels.metal.gated_rms_norm import gated_rms_norm
from tinyllm_kernels.metal.linear import linear
from tinyllm_kernels.metal.paged_attention import paged_attention
from tinyllm_kernels.metal.rms_norm import rms_norm
from tinyllm_kernels.metal.rope import norm_rope, rope
from tinyllm_kernels.metal.softmax import softmax
from tinyllm_kernels.metal.swiglu import swiglu

METAL = OpSet(
    name="metal",
    linear=linear,
    expert_linear=expert_linear,
    embedding=embedding,
    softmax=softmax,
    swiglu=swiglu,
    rms_norm=rms_norm,
    rope=rope,
    attention=attention,
    paged_attention=paged_attention,
    causal_conv=causal_conv,
    gated_delta=gated_delta,
    gated_rms_norm=gated_rms_norm,
    quantize=MLX.quantize,
    argmax=MLX.argmax,
    top_k=MLX.top_k,
    log_probability=MLX.log_probability,
    norm_rope=Fusion(norm_rope, of=("rms_norm", "rope")),
)
"""Ops with Metal kernels. MLX computes the ops and formats without a kernel: dense weights and
floating-point formats, quantization, and the selection of tokens."""
