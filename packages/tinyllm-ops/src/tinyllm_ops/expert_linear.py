"""The matrix products of a mixture of experts."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float, Integer

from tinyllm_ops.contract import Weight, check_expert_linear
from tinyllm_ops.linear import linear


def expert_linear(
    x: Float[mx.array, "N I"], w: Weight, experts: Integer[mx.array, "N"]
) -> Float[mx.array, "N O"]:
    """Multiply each row of x by the matrix of its own expert: y[n] = w[experts[n]] x[n].

    Only the experts that some row asks for are read. The reference has to know which those are,
    so it waits for `experts`; a fast implementation need not.

    Args:
        x: one row for each choice of a token, the rows of one expert side by side.
        w: the experts' matrices, `X O I`, dense or quantized.
        experts: which of the X each row goes to, in ascending order.

    Raises:
        ValueError: if shapes or dtypes do not fit.
    """
    check_expert_linear(x, w, experts)
    parts, start = [mx.zeros((0, w.shape[1]), x.dtype)], 0
    while start < len(x):
        expert = int(experts[start])
        end = start + int((experts == expert).sum())
        parts.append(linear(x[start:end], w[expert]))
        start = end
    return mx.concatenate(parts)
