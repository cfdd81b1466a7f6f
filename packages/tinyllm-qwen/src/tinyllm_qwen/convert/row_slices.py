"""Pack a large matrix some rows at a time."""

import mlx.core as mx
from tinyllm_ops import MLX, QuantizedTensor

from tinyllm_qwen.config.quantization import PackedFormat

# On a CPU, MLX packs the float modes with 40 times the memory of the matrix.
_NUMBERS = 1 << 20


def pack_rows(weight: mx.array, packed: PackedFormat) -> list[mx.array]:
    """Pack a matrix or a stack of matrices slice by slice. Rows are packed independently.

    Returns:
        Codes, scales, and in affine mode biases, equal to `mx.quantize` of the whole.
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
