"""Matrix products of projections and of mixtures of experts."""

import mlx.core as mx
from jaxtyping import Float, Integer

from tinyllm_ops.checks import check_expert_linear, check_linear
from tinyllm_ops.phase import Phase
from tinyllm_ops.quantization.tensor import QuantizedTensor, Weight, dequantize


def linear(
    x: Float[mx.array, "*batch I"],
    w: Weight,
    bias: Float[mx.array, "O"] | None = None,
    residual: Float[mx.array, "*batch O"] | None = None,
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch O"]:
    """x w^T + bias + residual, with a dense or quantized w of shape `O I`.

    A quantized w is dequantized to the dtype of x first. A fast implementation does not need the
    memory of a dequantized copy.

    Args:
        x: the input.
        w: the weight, `O I`.
        bias: added to each row.
        residual: residual connection, added to the result.
        phase: selects the kernel of a fast implementation. Unless given, it is inferred from the
            shape of x. An implementation that promises reproducible bits computes the same bits for
            a token in any pass of one phase, whatever other tokens are in the pass.

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

    Only the matrices of experts that have rows are read. The reference evaluates `experts` on the
    host. A fast implementation need not wait for the values.

    Args:
        x: one row for each pair of a token and one of its experts.
        w: the experts' matrices, `X O I`, dense or quantized.
        experts: the expert of each row, 0 to X - 1, in any order. Rows sorted by expert are faster,
            because an implementation can then read each matrix once.
        phase: as in `linear`.

    Raises:
        ValueError: if shapes or dtypes do not fit.
    """
    check_expert_linear(x, w, experts)
    rows = x.reshape(experts.size, x.shape[-1])
    y = mx.zeros((experts.size, w.shape[1]), x.dtype)
    if y.size == 0:  # MLX crashes on writes of rows without numbers
        return y.reshape(*experts.shape, w.shape[1])
    order = mx.argsort(experts.flatten())
    chosen, start = experts.flatten()[order], 0
    while start < len(rows):
        expert = int(chosen[start])
        stop = start + int((chosen == expert).sum())
        y[order[start:stop]] = linear(rows[order[start:stop]], w[expert])
        start = stop
    return y.reshape(*experts.shape, w.shape[1])
