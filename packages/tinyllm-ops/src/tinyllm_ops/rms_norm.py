"""Root mean square layer normalization."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float

from tinyllm_ops.contract import check_rms_norm


def rms_norm(
    x: Float[mx.array, "*batch D"], weight: Float[mx.array, "D"], eps: float = 1e-5
) -> Float[mx.array, "*batch D"]:
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019).

    The mean is taken in float32 and the normalized value rounded back to x's dtype before the
    weight is applied, as Qwen was trained. In float32 and bfloat16, x^2 overflows from about
    1.8e19 on.

    Raises:
        ValueError: if the weight does not fit x's last axis and dtype, or eps is negative.
    """
    check_rms_norm(x, weight, eps)
    wide = x.astype(mx.float32)
    mean_square = mx.mean(wide * wide, axis=-1, keepdims=True)
    return (wide * mx.rsqrt(mean_square + eps)).astype(x.dtype) * weight
