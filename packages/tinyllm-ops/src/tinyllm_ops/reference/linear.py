"""Matrix products: of a projection, and of a mixture of experts."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float, Integer

from tinyllm_ops.checks import Weight, check_expert_linear, check_linear
from tinyllm_ops.phase import Phase
from tinyllm_ops.quantization.quantize import dequantize
from tinyllm_ops.quantization.tensor import QuantizedTensor


def linear(
    x: Float[mx.array, "*batch I"],
    w: Weight,
    bias: Float[mx.array, "O"] | None = None,
    residual: Float[mx.array, "*batch O"] | None = None,
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch O"]:
    """x w^T + bias + residual, with w of shape `O I` dense or quantized.

    A quantized w is dequantized to x's dtype first. A fast implementation must give the same
    result, but must not use the memory that this takes.

    Args:
        x: the input.
        w: the weight.
        bias: added to each row.
        residual: added to the result, as the residual connection of a layer is.
        phase: chooses the kernel of a fast implementation; by shape unless given. A token has the
            same bits in any pass of one phase, whatever other tokens are in it.

    Raises:
        ValueError: if shapes or dtypes do not fit.
    """
    check_linear(x, w, bias, residual)
    if isinstance(w, QuantizedTensor):
        w = dequantize(w, x.dtype)
    y = x @ w.T
    y = y if bias is None else y + bias
    return y if residual is None else y + residual


def expert_linear(
    x: Float[mx.array, "*batch I"],
    w: Weight,
    experts: Integer[mx.array, "*batch"],
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch O"]:
    """Multiply each row of x by the matrix of its own expert: y[n] = w[experts[n]] x[n].

    Only the experts that are asked for are read. The reference has to know them, so it waits for
    `experts`; a fast implementation need not.

    Args:
        x: one row for each choice of a token.
        w: the experts' matrices, `X O I`, dense or quantized.
        experts: the expert of each row, 0 to X - 1. Rows of one expert should stand side by side
            in ascending order: a fast implementation then reads each matrix once.
        phase: as in `linear`.

    Raises:
        ValueError: if shapes or dtypes do not fit.
    """
    check_expert_linear(x, w, experts)
    rows = x.reshape(experts.size, x.shape[-1])
    y = mx.zeros((experts.size, w.shape[1]), x.dtype)
    order = mx.argsort(experts.flatten())
    chosen, start = experts.flatten()[order], 0
    while start < len(rows):
        expert = int(chosen[start])
        stop = start + int((chosen == expert).sum())
        y[order[start:stop]] = linear(rows[order[start:stop]], w[expert])
        start = stop
    return y.reshape(*experts.shape, w.shape[1])
