"""Scores to weights that sum to one."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float

from tinyllm_ops.contract import check_softmax


def softmax(x: Float[mx.array, "*shape"], axis: int = -1) -> Float[mx.array, "*shape"]:
    """exp(x - max x) / sum exp(x - max x) along `axis`, statistics in float32.

    The maximum is subtracted so that exp cannot overflow. A row in which everything is -inf has
    nothing to attend to: its weights are zeros, not NaN.

    Raises:
        ValueError: if x is not floating or has no such axis.
    """
    check_softmax(x, axis)
    if x.shape[axis] == 0:
        return x
    scores = x.astype(mx.float32)
    top = mx.max(scores, axis=axis, keepdims=True)
    weights = mx.exp(scores - mx.where(top == -mx.inf, 0, top))
    total = weights.sum(axis=axis, keepdims=True)
    return (weights / mx.where(total == 0, 1, total)).astype(x.dtype)
