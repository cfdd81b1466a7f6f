"""Quantize numbers to a few bits, and dequantize them."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float

from tinyllm_ops.checks import check_quantize
from tinyllm_ops.quantization.affine import affine_codes
from tinyllm_ops.quantization.microscaling import code_value, microscaled_codes, scale_value
from tinyllm_ops.quantization.packing import pack, unpack
from tinyllm_ops.quantization.tensor import AFFINE, QuantizedTensor


def quantize(
    w: Float[mx.array, "*lead I"], group_size: int = 64, bits: int = 4, mode: str = AFFINE
) -> QuantizedTensor:
    """Round `w` to `bits` bits in groups of `group_size` along its last axis.

    Codes and scales equal the result of `mx.quantize`. In the float modes they equal its result
    for a float32 copy of `w`, because in float16 MLX's own scale of a tiny group underflows, and
    the group is clipped.

    Raises:
        ValueError: if the format is unknown, or I is no multiple of the group.
    """
    check_quantize(w, group_size, bits, mode)
    groups = w.astype(mx.float32).reshape(*w.shape[:-1], w.shape[-1] // group_size, group_size)
    if mode == AFFINE:
        codes, scales, biases = affine_codes(groups, 2**bits - 1)
        return QuantizedTensor(
            pack(codes.reshape(w.shape), bits),
            scales.astype(w.dtype),
            biases.astype(w.dtype),
            group_size,
            bits,
            mode,
        )
    codes, scales = microscaled_codes(groups, mode)
    return QuantizedTensor(pack(codes.reshape(w.shape), bits), scales, None, group_size, bits, mode)


def dequantize(q: QuantizedTensor, dtype: mx.Dtype = mx.float32) -> Float[mx.array, "*lead I"]:
    """Decode the numbers in float32 and round them to `dtype` once."""
    codes = unpack(q.packed, q.bits).reshape(*q.scales.shape, q.group_size)
    if q.mode == AFFINE:
        assert q.biases is not None  # QuantizedTensor checks it
        scales, biases = q.scales.astype(mx.float32), q.biases.astype(mx.float32)
        w = scales[..., None] * codes.astype(mx.float32) + biases[..., None]
    else:
        w = scale_value(q.scales, q.mode)[..., None] * code_value(codes, q.bits)
    return w.reshape(q.shape).astype(dtype)
