"""The matrix products of a mixture of experts."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float, Integer

from tinyllm_ops.contract import Weight, check_expert_linear
from tinyllm_ops.linear import linear


def expert_linear(
    x: Float[mx.array, "*batch I"], w: Weight, experts: Integer[mx.array, "*batch"]
) -> Float[mx.array, "*batch O"]:
    """Multiply each row of x by the matrix of its own expert: y[n] = w[experts[n]] x[n].

    Only the experts that some row asks for are read. The reference has to know which those are,
    so it waits for `experts`; a fast implementation need not.

    Args:
        x: one row for each choice of a token, the rows of one expert side by side. A fast
            implementation may tell by the axes what the rows are, as in `linear`: those of
            `... 1 I` belong to texts of their own.
        w: the experts' matrices, `X O I`, dense or quantized.
        experts: which of the X each row goes to, in ascending order.

    Raises:
        ValueError: if shapes or dtypes do not fit.
    """
    check_expert_linear(x, w, experts)
    rows, chosen = x.reshape(experts.size, x.shape[-1]), experts.flatten()
    parts, start = [mx.zeros((0, w.shape[1]), x.dtype)], 0
    while start < len(rows):
        expert = int(chosen[start])
        end = start + int((chosen == expert).sum())
        parts.append(linear(rows[start:end], w[expert]))
        start = end
    return mx.concatenate(parts).reshape(*experts.shape, w.shape[1])
