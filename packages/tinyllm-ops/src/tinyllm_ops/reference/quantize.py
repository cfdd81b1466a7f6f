"""Quantize arrays to a few bits per number, in the formats of `mx.quantize`."""

import mlx.core as mx
from jaxtyping import Float

from tinyllm_ops.checks import check_quantize
from tinyllm_ops.quantization.microscaling import microscaled_codes
from tinyllm_ops.quantization.tensor import AFFINE, QuantizationMode, QuantizedTensor, pack

# A group of equal numbers has a range of 0. This scale avoids a division by 0.
_SMALLEST_SCALE = 1e-7


def quantize(
    w: Float[mx.array, "*lead I"],
    group_size: int = 64,
    bits: int = 4,
    mode: QuantizationMode = AFFINE,
) -> QuantizedTensor:
    """Round `w` to `bits` bits per number, in groups of `group_size` along the last axis.

    In affine mode, codes and scales equal the result of `mx.quantize(w)`. In the float modes they
    equal the result of `mx.quantize` for a float32 copy of `w`: in float16, MLX's scale of a group
    of tiny numbers underflows, and the group is clipped.

    Args:
        w: the numbers.
        group_size: numbers that share a scale.
        bits: width of a code.
        mode: "affine", "mxfp4", "mxfp8" or "nvfp4".

    Raises:
        ValueError: if MLX does not define the format, or I is no multiple of `group_size`.
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
    codes, scales = microscaled_codes(groups, bits, mode)
    return QuantizedTensor(pack(codes.reshape(w.shape), bits), scales, None, group_size, bits, mode)


def affine_codes(
    groups: Float[mx.array, "*lead G N"], top: int
) -> tuple[mx.array, Float[mx.array, "*lead G"], Float[mx.array, "*lead G"]]:
    """Spread codes 0..top over each group's range, so that zero gets a code if it is in the range.

    Returns:
        The codes `*lead G N`, uint32, and the scales and biases `*lead G`.
    """
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    # Code 0 is the end of the range that is farther from zero. The scale is negative if that end is
    # the upper one.
    downward = mx.abs(low) > mx.abs(high)
    scale = mx.maximum((high - low) / top, _SMALLEST_SCALE)
    scale = mx.where(downward, scale, -scale)
    edge = mx.where(downward, low, high)
    zero = mx.round(edge / scale)
    scale = mx.where(zero == 0, scale, edge / mx.where(zero == 0, 1, zero))
    bias = mx.where(zero == 0, 0, edge)
    codes = mx.clip(mx.round((groups - bias) / scale), 0, top).astype(mx.uint32)
    return codes, scale.squeeze(-1), bias.squeeze(-1)
