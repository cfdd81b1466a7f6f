"""No token sees the future."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float


def causal_mask(L: int, S: int, dtype: mx.Dtype = mx.float32) -> Float[mx.array, "{L} {S}"]:
    """What to add to the scores of L queries over S keys: 0 where visible, -inf elsewhere.

    Query i sees key j when j <= i + (S - L): the last query sees every key, and the diagonal ends
    at the bottom right, so that a chunk of queries sits at the end of the keys it follows.

    Raises:
        ValueError: if a length is negative.
    """
    if L < 0 or S < 0:
        raise ValueError(f"L, S: expected lengths not below 0, got {L}, {S}")
    visible = mx.arange(S) <= mx.arange(L)[:, None] + (S - L)
    return mx.where(visible, 0, -mx.inf).astype(dtype)
