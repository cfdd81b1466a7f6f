"""Products with quantized matrices: `matrix_vector.py` decodes, `matrix_product.py` reads prompts.

The axes say which it is, not how many rows there are, since the two round differently and a request
should get the same whatever is computed beside it: rows of `R 1 I` are decoded, each the last of a
text, those of `1 T I` a prompt. Of a matrix `N I` up to eight rows count as decoded: a lane keeps
their sums in registers, and the time is that of reading the weights. From nine on a tile of 32
tokens is filled by a quarter and more. No GPU has been asked for the best border.

Affine weights of 2, 3, 4, 5, 6 and 8 bits in groups of 32, 64 and 128. Dense weights and those in
floating-point modes (mxfp4, mxfp8, nvfp4) go to MLX, which has kernels for them.
"""

from __future__ import annotations

from typing import TypeGuard

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import MLX, QuantizedTensor, Weight
from tinyllm_ops.contract import check_linear
from tinyllm_ops.quantized_tensor import AFFINE

from tinyllm_kernels.metal.linear.addend import Addend
from tinyllm_kernels.metal.linear.matrix_product import matrix_product
from tinyllm_kernels.metal.linear.matrix_vector import MAX_TOKENS, is_decoded, matrix_vector


def linear(
    x: Float[mx.array, "*batch I"], w: Weight, bias: Float[mx.array, "O"] | None = None
) -> Float[mx.array, "*batch O"]:
    """x w^T + bias, sums in float32; see `tinyllm_ops.linear`."""
    check_linear(x, w, bias)
    if not _has_kernel(w, x):
        return MLX.linear(x, w, bias)
    return _product(x, w, bias)


def add_linear(
    residual: Float[mx.array, "*batch O"],
    x: Float[mx.array, "*batch I"],
    w: Weight,
    bias: Float[mx.array, "O"] | None = None,
) -> Float[mx.array, "*batch O"]:
    """Residual + x w^T + bias, by the product itself."""
    check_linear(x, w, bias)
    if not _has_kernel(w, x):
        return residual + MLX.linear(x, w, bias)
    rows = residual if bias is None else residual + bias
    return _product(x, w, rows.reshape(-1, w.shape[0]))


def _has_kernel(w: Weight, x: mx.array) -> TypeGuard[QuantizedTensor]:
    """Whether the product is one with affine codes, and not empty."""
    is_affine = isinstance(w, QuantizedTensor) and w.mode == AFFINE
    return is_affine and x.size > 0 and w.shape[0] > 0


def _product(x: mx.array, w: QuantizedTensor, added: mx.array | None) -> mx.array:
    product = matrix_vector if is_decoded(x, MAX_TOKENS) else matrix_product
    y = product(x.reshape(-1, x.shape[-1]), w, Addend.of(added))
    return y.reshape(*x.shape[:-1], w.shape[0])
