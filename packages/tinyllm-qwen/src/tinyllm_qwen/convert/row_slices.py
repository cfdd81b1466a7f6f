"""Quantization of a large matrix, some rows at a time."""

import mlx.core as mx
from tinyllm_ops import MLX, QuantizedTensor

from tinyllm_qwen.config.quantization import PackedFormat

# The number of weights that are packed at a time. On a CPU, MLX's float modes need 40 times the
# memory of the weights.
_NUMBERS = 1 << 20


def pack_rows(weight: mx.array, packed: PackedFormat) -> list[mx.array]:
    """Pack a matrix `O I` or a stack of matrices `X O I`, some rows at a time.

    Returns:
        Codes, scales, and in affine mode biases. They equal the result of `mx.quantize` for the
        whole tensor, because rows are packed independently.
    """
    columns = weight.shape[-1]
    matrix = weight.reshape(-1, columns)
    step = max(1, _NUMBERS // columns)
    slices: list[QuantizedTensor] = []
    for start in range(0, matrix.shape[0], step):
        rows = matrix[start : start + step]
        q = MLX.quantize(rows, packed.group_size, packed.bits, packed.mode)
        mx.eval(q.arrays)
        slices.append(q)
    return [
        mx.concatenate(list(parts)).reshape(*weight.shape[:-1], -1)
        for parts in zip(*(q.arrays for q in slices), strict=True)
    ]
