"""Linear layers with quantized weights.

`matrix_vector.py` computes decode steps, `matrix_product.py` computes prompts. The two kernels
round differently. The phase alone chooses the kernel, so that a token has the same bits alone, in
any batch, and in chunks of any length. A call without a phase treats a matrix `N I` of up to eight
rows as decode steps. This limit has not been measured on a GPU.

Both kernels read affine weights of 2, 3, 4, 5, 6 and 8 bits in groups of 32, 64 and 128. MLX
computes dense weights and weights in floating-point formats (mxfp4, mxfp8, nvfp4), and chooses its
kernels by the number of rows.
"""

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import MLX, Phase, QuantizedTensor, Weight, phase_of
from tinyllm_ops.checks import check_linear
from tinyllm_ops.quantization.tensor import AFFINE

from tinyllm_kernels.metal.linear.addend import Addend
from tinyllm_kernels.metal.linear.matrix_product import matrix_product
from tinyllm_kernels.metal.linear.matrix_vector import MAX_TOKENS, matrix_vector


def linear(
    x: Float[mx.array, "*batch I"],
    w: Weight,
    bias: Float[mx.array, "O"] | None = None,
    residual: Float[mx.array, "*batch O"] | None = None,
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch O"]:
    """x w^T + bias + residual, with sums in float32; see `tinyllm_ops.linear`.

    The kernel adds the bias or the residual before it rounds the result. If both are given, their
    sum is rounded first.
    """
    check_linear(x, w, bias, residual)
    is_affine = isinstance(w, QuantizedTensor) and w.mode == AFFINE
    if not is_affine or x.size == 0 or w.shape[0] == 0:
        return MLX.linear(x, w, bias, residual, phase=phase)
    assert isinstance(w, QuantizedTensor)
    is_decode = (phase or phase_of(x, MAX_TOKENS)) == "decode"
    product = matrix_vector if is_decode else matrix_product
    y = product(x.reshape(-1, x.shape[-1]), w, Addend.of(bias, residual))
    return y.reshape(*x.shape[:-1], w.shape[0])
