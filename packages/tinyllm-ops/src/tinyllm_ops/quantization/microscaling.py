"""Floating-point codes that share a scale: mxfp4, mxfp8 and nvfp4.

mxfp4 and mxfp8 are formats of the Open Compute Project's microscaling specification. nvfp4 is a
format of NVIDIA. A code is a floating-point number of 4 or 8 bits. A scale has 8 bits.
"""

from typing import Literal

import mlx.core as mx
from jaxtyping import Float, UInt8, UInt32

FloatMode = Literal["mxfp4", "mxfp8", "nvfp4"]
"""The mode of a packed format with floating-point codes."""

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # values of codes 0..7; bit 3 is the sign
_E4M3_MAX = 448.0
_E8M0_BIAS = 127


def microscaled_codes(
    groups: Float[mx.array, "*lead G N"], bits: int, mode: FloatMode
) -> tuple[mx.array, UInt8[mx.array, "*lead G"]]:
    """Scale each group so that its largest number fits a code, then round to the nearest code.

    Returns:
        The codes `*lead G N`, uint32, and the scales `*lead G` as bytes.
    """
    largest = mx.abs(groups).max(-1) / (_E2M1[-1] if bits == 4 else _E4M3_MAX)
    if mode == "nvfp4":
        scales = mx.to_fp8(largest)
    else:
        exponent = mx.ceil(mx.log2(mx.where(largest == 0, 1, largest)))
        scales = mx.clip(exponent + _E8M0_BIAS, 0, 254).astype(mx.uint8)
    scale = scale_value(scales, mode)[..., None]
    scaled = groups / mx.where(scale == 0, 1, scale)
    if bits == 8:
        return mx.to_fp8(scaled).astype(mx.uint32), scales
    grid = mx.array(_E2M1)
    middle = (grid[1:] + grid[:-1]) / 2
    magnitude = (mx.abs(scaled)[..., None] > middle).sum(-1).astype(mx.uint32)
    negative = mx.logical_and(scaled < 0, magnitude > 0)  # zero has one code, not two
    return magnitude + 8 * negative.astype(mx.uint32), scales


def scale_value(scales: UInt8[mx.array, "*groups"], mode: FloatMode) -> Float[mx.array, "*groups"]:
    """Decode 8-bit scales: E4M3 for nvfp4, a power of two (E8M0) for mxfp4 and mxfp8."""
    if mode == "nvfp4":
        return mx.from_fp8(scales, mx.float32)
    return mx.power(2.0, scales.astype(mx.float32) - _E8M0_BIAS)


def code_value(codes: UInt32[mx.array, "*shape"], bits: int) -> Float[mx.array, "*shape"]:
    """Decode floating-point codes: E2M1 for 4 bits, E4M3 for 8 bits."""
    if bits == 8:
        return mx.from_fp8(codes.astype(mx.uint8), mx.float32)
    return mx.array([*_E2M1, *(-value for value in _E2M1)])[codes]
