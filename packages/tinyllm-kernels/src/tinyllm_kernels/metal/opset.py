"""The OpSet of Metal kernels.

MLX computes what has no kernel here: attention, dense and floating-point weights, silu alone,
quantize.
"""

from tinyllm_ops import MLX, OpSet

from tinyllm_kernels.metal.rms_norm import rms_norm

METAL = OpSet(
    name="metal",
    linear=MLX.linear,
    expert_linear=MLX.expert_linear,
    embedding=MLX.embedding,
    softmax=MLX.softmax,
    silu=MLX.silu,
    swiglu=MLX.swiglu,
    rms_norm=rms_norm,
    rope=MLX.rope,
    attention=MLX.attention,
    paged_attention=MLX.paged_attention,
    quantize=MLX.quantize,
)
