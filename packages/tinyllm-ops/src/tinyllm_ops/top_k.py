"""The k likeliest tokens: what top-k sampling draws from."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float, Int32

from tinyllm_ops.contract import check_top_k


def top_k(
    x: Float[mx.array, "*batch V"], k: int
) -> tuple[Float[mx.array, "*batch k"], Int32[mx.array, "*batch k"]]:
    """The k largest numbers of each row, the largest first, and where they are.

    Among numbers that tie for the last place any may be taken. NaN come last.

    Raises:
        ValueError: if x is not floating, or k is not in 1..V.
    """
    check_top_k(x, k)
    if x.size == 0:  # no rows, which MLX does not partition
        return mx.zeros((*x.shape[:-1], k), x.dtype), mx.zeros((*x.shape[:-1], k), mx.int32)
    # A partition first: to sort all of 151,936 scores takes longer than a small model's token.
    found = mx.argpartition(-x, k - 1, axis=-1)[..., :k]
    scores = mx.take_along_axis(x, found, axis=-1)
    order = mx.argsort(-scores, axis=-1)
    indices = mx.take_along_axis(found, order, axis=-1).astype(mx.int32)
    return mx.take_along_axis(scores, order, axis=-1), indices
