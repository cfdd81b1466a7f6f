"""Rotary position embedding."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float

from tinyllm_ops.contract import check_rope
from tinyllm_ops.positions import Positions, position_array


def rope(
    x: Float[mx.array, "B L H D"],
    positions: Positions = slice(None),
    base: float = 10000.0,
    traditional: bool = False,
) -> Float[mx.array, "B L H D"]:
    """Rotate each pair of features by an angle proportional to the token's position (Su 2021).

    Pair i of D/2 turns by position * base^(-i / (D/2)):
    a' = a cos - b sin, b' = b cos + a sin. The product of two rotated vectors depends on the
    difference of their positions alone. Angles are float32 whatever the dtype of x.

    Args:
        x: queries or keys, before attention moves the heads forward.
        positions: see `position_array`.
        base: wavelengths go from 2 pi to 2 pi base.
        traditional: pair neighbors (0, 1), (2, 3), ...; otherwise, as in Qwen, i with i + D/2.

    Raises:
        ValueError: if D is odd, or positions do not fit.
    """
    check_rope(x, base)
    batch, length, _, dim = x.shape
    half = dim // 2
    frequencies = mx.power(base, -mx.arange(half, dtype=mx.float32) / half)
    where = position_array(positions, batch, length)
    angles = where[..., None, None].astype(mx.float32) * frequencies  # B L 1 D/2
    cos, sin = mx.cos(angles), mx.sin(angles)

    wide = x.astype(mx.float32)
    if traditional:
        a, b = wide[..., 0::2], wide[..., 1::2]
    else:
        a, b = wide[..., :half], wide[..., half:]
    rotated = [a * cos - b * sin, b * cos + a * sin]
    if traditional:
        return mx.stack(rotated, axis=-1).reshape(x.shape).astype(x.dtype)
    return mx.concatenate(rotated, axis=-1).astype(x.dtype)
