"""Rotary position embedding."""

import mlx.core as mx
from jaxtyping import Float

from tinyllm_ops.checks import check_rope, position_array
from tinyllm_ops.opset import OpSet, Positions
from tinyllm_ops.rotary_frequencies import Yarn, rotary_frequencies


def rope(
    x: Float[mx.array, "B L H D"],
    positions: Positions = slice(None),
    base: float = 10000.0,
    traditional: bool = False,
    scaling: Yarn | None = None,
    dims: int | None = None,
) -> Float[mx.array, "B L H D"]:
    """Rotate each pair of features by an angle proportional to the token's position (Su 2021).

    Pair (a, b) number i of D/2 turns by the angle position * base^(-i / (D/2)):
    a' = a cos - b sin, b' = b cos + a sin. The product of two rotated vectors depends only on the
    difference of their positions. Angles are float32 for every dtype of x. At position p an angle
    is exact to p * 2^-23 radians, as in the training of the models.

    Args:
        x: queries or keys, tokens before heads.
        positions: a slice for all rows, or an integer array of shape `L` or `B L`. `slice(5, 10)`
            puts token 0 at position 5.
        base: base of the frequencies. The wavelengths of the pairs, in tokens, range from 2 pi to
            almost 2 pi * base.
        traditional: True to pair features (0, 1), (2, 3), ...; False, as in Qwen, to pair feature i
            with i + D/2.
        scaling: settings of YaRN, which lowers the low frequencies for texts longer than in
            training; None for no scaling.
        dims: number of features of a head to rotate, from the first on. The rest pass unchanged,
            and D stands for `dims` in the formulas above. None for all features.

    Raises:
        ValueError: if the number of rotated features is odd or above D, or positions do not fit.
    """
    check_rope(x, base, dims)
    if dims is not None and dims < x.shape[-1]:
        rotated = rope(x[..., :dims], positions, base, traditional, scaling)
        return mx.concatenate([rotated, x[..., dims:]], axis=-1)
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
    turned = [a * cos - b * sin, b * cos + a * sin]
    if traditional:
        return mx.stack(turned, axis=-1).reshape(x.shape).astype(x.dtype)
    return mx.concatenate(turned, axis=-1).astype(x.dtype)


def norm_rope(
    ops: OpSet,
    x: Float[mx.array, "B L H D"],
    weight: Float[mx.array, "D"] | None,
    eps: float,
    positions: Positions = slice(None),
    base: float = 10000.0,
    traditional: bool = False,
    scaling: Yarn | None = None,
    dims: int | None = None,
) -> Float[mx.array, "B H L D"]:
    """Normalize each head, rotate it to its position, and move the heads before the tokens.

    Queries and keys need these steps between projection and attention. The result is
    rope(rms_norm(x)) with axes 1 and 2 swapped. If `ops` has a fusion `norm_rope`, the fusion
    computes all steps.

    Args:
        ops: the implementation of the maths.
        x: projected queries or keys.
        weight: weight of the norm of each head (Qwen3), or None for no norm (Qwen2).
        eps: eps of the norm, as in `rms_norm`.
        positions: positions of the tokens, as in `rope`.
        base: as in `rope`.
        traditional: as in `rope`.
        scaling: as in `rope`.
        dims: as in `rope`. The norm covers all features.

    Raises:
        ValueError: as in `rms_norm` and `rope`.
    """
    if ops.norm_rope is not None:
        return ops.norm_rope.function(x, weight, eps, positions, base, traditional, scaling, dims)
    if weight is not None:
        x = ops.rms_norm(x, weight, eps)
    return ops.rope(x, positions, base, traditional, scaling, dims).swapaxes(1, 2)
