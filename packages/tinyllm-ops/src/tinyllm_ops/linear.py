"""The matrix product that a projection is."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float

from tinyllm_ops.contract import Weight, check_linear
from tinyllm_ops.quantization import dequantize
from tinyllm_ops.quantized_tensor import QuantizedTensor


def linear(
    x: Float[mx.array, "*batch I"], w: Weight, bias: Float[mx.array, "O"] | None = None
) -> Float[mx.array, "*batch O"]:
    """x w^T + bias, with w of shape `O I` dense or quantized.

    A quantized w is read back to numbers of x's dtype first: what a fast implementation must
    equal, at the price of memory that it must not pay.

    Raises:
        ValueError: if shapes or dtypes do not fit.
    """
    check_linear(x, w, bias)
    if isinstance(w, QuantizedTensor):
        w = dequantize(w, x.dtype)
    y = x @ w.T
    return y if bias is None else y + bias
