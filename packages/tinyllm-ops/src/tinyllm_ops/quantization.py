"""Weights to a few bits and back, in the formats that MLX stores.

Affine (Jacob et al. 2018, by groups): w = scale * code + bias. The float modes are those of the
Open Compute Project's microscaling specification (mxfp4, mxfp8) and NVIDIA's nvfp4: a code is a
4- or 8-bit floating-point number, a scale is an 8-bit one.
"""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float, UInt8, UInt32

from tinyllm_ops.contract import check_quantize
from tinyllm_ops.quantized_tensor import AFFINE, FLOAT_MODES, QuantizedTensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # what three bits and a sign can say
E4M3_MAX = 448.0
E8M0_BIAS = 127
SMALLEST_SCALE = 1e-7


def quantize(
    w: Float[mx.array, "*lead I"], group_size: int = 64, bits: int = 4, mode: str = AFFINE
) -> QuantizedTensor:
    """Round `w` to `bits` bits in groups of `group_size` along its last axis.

    The codes and scales are those that `mx.quantize` computes; in the float modes, from a float32
    copy of `w` (in float16, MLX's own scale of a tiny group underflows, and the group is clipped).

    Raises:
        ValueError: if the format is unknown, or I is no multiple of the group.
    """
    check_quantize(w, group_size, bits, mode)
    groups = w.astype(mx.float32).reshape(*w.shape[:-1], w.shape[-1] // group_size, group_size)
    if mode == AFFINE:
        codes, scales, biases = _affine(groups, 2**bits - 1)
        return QuantizedTensor(
            pack(codes.reshape(w.shape), bits),
            scales.astype(w.dtype),
            biases.astype(w.dtype),
            group_size,
            bits,
            mode,
        )
    codes, scales = _microscaled(groups, mode)
    return QuantizedTensor(pack(codes.reshape(w.shape), bits), scales, None, group_size, bits, mode)


def dequantize(q: QuantizedTensor, dtype: mx.Dtype = mx.float32) -> Float[mx.array, "*lead I"]:
    """The numbers that the codes stand for, computed in float32 and rounded to `dtype` once."""
    codes = unpack(q.packed, q.bits).reshape(*q.scales.shape, q.group_size)
    if q.mode == AFFINE:
        assert q.biases is not None  # QuantizedTensor sees to it
        scales, biases = q.scales.astype(mx.float32), q.biases.astype(mx.float32)
        w = scales[..., None] * codes.astype(mx.float32) + biases[..., None]
    else:
        w = _scale_value(q.scales, q.mode)[..., None] * _code_value(codes, q.bits)
    return w.reshape(q.shape).astype(dtype)


def pack(codes: UInt32[mx.array, "*lead I"], bits: int) -> UInt32[mx.array, "*lead words"]:
    """Lay codes end to end, lowest bit first, and cut the stream into words of 32 bits."""
    stream = (codes[..., None] >> mx.arange(bits, dtype=mx.uint32)) & 1  # *lead I bits
    words = stream.reshape(*codes.shape[:-1], codes.shape[-1] * bits // 32, 32)
    return (words << mx.arange(32, dtype=mx.uint32)).sum(-1).astype(mx.uint32)


def unpack(packed: UInt32[mx.array, "*lead words"], bits: int) -> UInt32[mx.array, "*lead I"]:
    """Undo `pack`: code i is the bits from i*bits on, and may lie across two words."""
    if 32 % bits == 0:  # every code lies in one word
        codes = packed[..., None] >> mx.arange(0, 32, bits, dtype=mx.uint32)
        codes = codes.reshape(*packed.shape[:-1], packed.shape[-1] * 32 // bits)
    else:
        start = mx.arange(packed.shape[-1] * 32 // bits) * bits
        word, shift = start // 32, (start % 32).astype(mx.uint64)
        low = packed[..., word].astype(mx.uint64)
        high = packed[..., mx.minimum(word + 1, packed.shape[-1] - 1)].astype(mx.uint64)
        two_words = mx.bitwise_or(mx.left_shift(high, 32), low)
        codes = mx.right_shift(two_words, shift).astype(mx.uint32)
    return mx.bitwise_and(codes, 2**bits - 1)


def _affine(
    groups: Float[mx.array, "*lead G N"], top: int
) -> tuple[mx.array, Float[mx.array, "*lead G"], Float[mx.array, "*lead G"]]:
    """Spread codes 0..top over each group's range, with zero on the grid where it is inside."""
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    # The end farther from zero gets a code of its own; the scale is negative when that is the top.
    downward = mx.abs(low) > mx.abs(high)
    scale = mx.maximum((high - low) / top, SMALLEST_SCALE)
    scale = mx.where(downward, scale, -scale)
    edge = mx.where(downward, low, high)
    zero = mx.round(edge / scale)
    scale = mx.where(zero == 0, scale, edge / mx.where(zero == 0, 1, zero))
    bias = mx.where(zero == 0, 0, edge)
    codes = mx.clip(mx.round((groups - bias) / scale), 0, top).astype(mx.uint32)
    return codes, scale.squeeze(-1), bias.squeeze(-1)


def _microscaled(
    groups: Float[mx.array, "*lead G N"], mode: str
) -> tuple[mx.array, UInt8[mx.array, "*lead G"]]:
    """Scale each group so that its largest number fits a code, then round to the nearest code."""
    bits, _ = FLOAT_MODES[mode]
    largest = mx.abs(groups).max(-1) / (E2M1[-1] if bits == 4 else E4M3_MAX)
    if mode == "nvfp4":
        scales = mx.to_fp8(largest)
    else:
        exponent = mx.ceil(mx.log2(mx.where(largest == 0, 1, largest)))
        scales = mx.clip(exponent + E8M0_BIAS, 0, 254).astype(mx.uint8)
    scale = _scale_value(scales, mode)[..., None]
    scaled = groups / mx.where(scale == 0, 1, scale)
    if bits == 8:
        return mx.to_fp8(scaled).astype(mx.uint32), scales
    grid = mx.array(E2M1)
    middle = (grid[1:] + grid[:-1]) / 2
    magnitude = (mx.abs(scaled)[..., None] > middle).sum(-1).astype(mx.uint32)
    negative = mx.logical_and(scaled < 0, magnitude > 0)  # zero has one code, not two
    return magnitude + 8 * negative.astype(mx.uint32), scales


def _scale_value(scales: UInt8[mx.array, "*groups"], mode: str) -> Float[mx.array, "*groups"]:
    """Decode 8-bit scales: E4M3 for nvfp4, a power of two (E8M0) for the others."""
    if mode == "nvfp4":
        return mx.from_fp8(scales, mx.float32)
    return mx.power(2.0, scales.astype(mx.float32) - E8M0_BIAS)


def _code_value(codes: UInt32[mx.array, "*shape"], bits: int) -> Float[mx.array, "*shape"]:
    """Decode floating-point codes: E2M1 of 4 bits, E4M3 of 8."""
    if bits == 8:
        return mx.from_fp8(codes.astype(mx.uint8), mx.float32)
    return mx.array([*E2M1, *(-value for value in E2M1)])[codes]
