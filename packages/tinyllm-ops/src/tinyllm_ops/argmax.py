"""The likeliest token: greedy decoding."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float, Int32

from tinyllm_ops.contract import check_scores


def argmax(x: Float[mx.array, "*batch V"]) -> Int32[mx.array, "*batch"]:
    """Where in each row the largest number is; of equal ones the first.

    A row with a NaN has its first NaN for the largest, as NumPy has it.

    Raises:
        ValueError: if x is not floating or its rows are empty.
    """
    check_scores(x)
    if x.size == 0:  # no rows, which MLX does not reduce
        return mx.zeros(x.shape[:-1], mx.int32)
    return mx.argmax(x, axis=-1).astype(mx.int32)
