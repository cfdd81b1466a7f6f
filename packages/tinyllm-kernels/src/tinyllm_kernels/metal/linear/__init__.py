"""Products with quantized matrices: `matrix_vector.py` decodes, `matrix_product.py` reads prompts.

Where one ends and the other begins: up to eight tokens a lane keeps all their sums in registers and
the time is that of reading the weights; from nine on a tile of 32 tokens is filled by a quarter and
more, and the matrices of a simdgroup do the arithmetic. No GPU has been asked for the best border.

Affine weights of 2, 3, 4, 5, 6 and 8 bits in groups of 32, 64 and 128. Dense weights and those in
floating-point modes (mxfp4, mxfp8, nvfp4) go to MLX, which has kernels for them.
"""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import MLX, QuantizedTensor, Weight
from tinyllm_ops.contract import check_linear
from tinyllm_ops.quantized_tensor import AFFINE

from tinyllm_kernels.metal.linear.matrix_product import matrix_product
from tinyllm_kernels.metal.linear.matrix_vector import MAX_TOKENS, matrix_vector


def linear(
    x: Float[mx.array, "*batch I"], w: Weight, bias: Float[mx.array, "O"] | None = None
) -> Float[mx.array, "*batch O"]:
    """x w^T + bias, sums in float32; see `tinyllm_ops.linear`."""
    check_linear(x, w, bias)
    if not isinstance(w, QuantizedTensor) or w.mode != AFFINE or x.size == 0 or w.packed.size == 0:
        return MLX.linear(x, w, bias)
    rows = x.reshape(-1, x.shape[-1])
    product = matrix_vector if rows.shape[0] <= MAX_TOKENS else matrix_product
    y = product(rows, w).reshape(*x.shape[:-1], w.shape[0])
    return y if bias is None else y + bias
