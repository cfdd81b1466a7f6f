"""Affine codes by groups (Jacob et al. 2018): w = scale * code + bias."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float

_SMALLEST_SCALE = 1e-7


def affine_codes(
    groups: Float[mx.array, "*lead G N"], top: int
) -> tuple[mx.array, Float[mx.array, "*lead G"], Float[mx.array, "*lead G"]]:
    """Spread codes 0..top over each group's range, with zero on the grid if it is in the range."""
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    # The end farther from zero gets a code of its own; the scale is negative when that is the top.
    downward = mx.abs(low) > mx.abs(high)
    scale = mx.maximum((high - low) / top, _SMALLEST_SCALE)
    scale = mx.where(downward, scale, -scale)
    edge = mx.where(downward, low, high)
    zero = mx.round(edge / scale)
    scale = mx.where(zero == 0, scale, edge / mx.where(zero == 0, 1, zero))
    bias = mx.where(zero == 0, 0, edge)
    codes = mx.clip(mx.round((groups - bias) / scale), 0, top).astype(mx.uint32)
    return codes, scale.squeeze(-1), bias.squeeze(-1)
