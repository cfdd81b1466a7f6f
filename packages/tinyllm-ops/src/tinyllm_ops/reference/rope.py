"""Rotary position embedding."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float

from tinyllm_ops.checks import check_rope
from tinyllm_ops.positions import Positions, position_array
from tinyllm_ops.rotary_frequencies import Yarn, rotary_frequencies


def rope(
    x: Float[mx.array, "B L H D"],
    positions: Positions = slice(None),
    base: float = 10000.0,
    traditional: bool = False,
    scaling: Yarn | None = None,
) -> Float[mx.array, "B L H D"]:
    """Rotate each pair of features by an angle proportional to the token's position (Su 2021).

    Pair i of D/2 turns by position * base^(-i / (D/2)): a' = a cos - b sin, b' = b cos + a sin.
    The product of two rotated vectors depends only on the difference of their positions. Angles
    are float32 for every dtype of x. At position p they are exact to p * 2^-23 radians, as in the
    training of the models.

    Args:
        x: queries or keys, tokens before heads.
        positions: a slice for all rows, one slice for each row, or an integer array of shape `L` or
            `B L`. `slice(5, 10)` puts token 0 at position 5.
        base: wavelengths go from 2 pi to 2 pi base.
        traditional: pair neighbors (0, 1), (2, 3), ...; otherwise, as in Qwen, i with i + D/2.
        scaling: settings of YaRN, which slows down the slow pairs for texts longer than the
            training's.

    Raises:
        ValueError: if D is odd, or positions do not fit.
    """
    check_rope(x, base)
    batch, length, _, dim = x.shape
    half = dim // 2
    frequencies = mx.array(rotary_frequencies(dim, base, scaling))
    position_ids = position_array(positions, batch, length)
    angles = position_ids[..., None, None].astype(mx.float32) * frequencies  # B L 1 D/2
    magnitude = 1.0 if scaling is None else scaling.magnitude
    cos, sin = mx.cos(angles) * magnitude, mx.sin(angles) * magnitude

    wide = x.astype(mx.float32)
    if traditional:
        a, b = wide[..., 0::2], wide[..., 1::2]
    else:
        a, b = wide[..., :half], wide[..., half:]
    rotated = [a * cos - b * sin, b * cos + a * sin]
    if traditional:
        return mx.stack(rotated, axis=-1).reshape(x.shape).astype(x.dtype)
    return mx.concatenate(rotated, axis=-1).astype(x.dtype)
