"""Quantization: MLX's affine 4-bit codes, as a function of PyTorch tensors.

A row is cut into groups of 64; in each, w ~ scale * code + bias with codes 0..15. Scale and bias
are those of `mx.quantize`: the edge of the range that is farther from zero is exact, and so is zero
if the range contains it.
"""

import mlx.core as mx
import numpy as np
import torch
from torch import Tensor

GROUP_SIZE = 64
BITS = 4
SCALE_DTYPE = torch.float16
SMALLEST_SCALE = 1e-7  # MLX's own, for a group of equal weights


def fake_quantize(weight: Tensor) -> Tensor:
    """Return the values (O I) that `weight` (O I, float32) has after quantization.

    Rounding has no useful gradient. The gradient of the values is passed on to `weight` unchanged
    (the straight-through estimator).
    """
    with torch.no_grad():
        top = (1 << BITS) - 1
        groups = weight.unflatten(-1, (-1, GROUP_SIZE))  # O I/64 64; low to bias are O I/64 1
        low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
        # Code 0 stands for the edge farther from zero; the scale is negative when that is the top.
        upward = low.abs() > high.abs()
        scale = ((high - low) / top).clamp_min(SMALLEST_SCALE)
        scale = torch.where(upward, scale, -scale)
        edge = torch.where(upward, low, high)
        steps = torch.round(edge / scale)
        bias = torch.where(steps != 0, edge, torch.zeros_like(edge))
        scale = torch.where(steps != 0, edge / steps, scale)
        codes = torch.round((groups - bias) / scale).clamp(0, top)
        # The file stores scale and bias in 16 bits, after the codes are chosen.
        stored = codes * scale.to(SCALE_DTYPE).float() + bias.to(SCALE_DTYPE).float()
        value = stored.flatten(-2)
    return value + (weight - weight.detach())


def pack(weight: Tensor) -> tuple[mx.array, mx.array, mx.array]:
    """Return `weight` (O I) as MLX's packed codes (O I/8), scales and biases (O I/64).

    Scales and biases are rounded to float16 after the codes were chosen.
    """
    array = mx.array(weight.detach().float().numpy())
    codes, scales, biases = mx.quantize(array, group_size=GROUP_SIZE, bits=BITS)
    return codes, scales.astype(mx.float16), biases.astype(mx.float16)


def unpack(codes: mx.array, scales: mx.array, biases: mx.array) -> Tensor:
    """Return the weight (O I, float32) of codes, scales and biases that `pack` returned."""
    weight = mx.dequantize(
        codes,
        scales.astype(mx.float32),
        biases.astype(mx.float32),
        group_size=GROUP_SIZE,
        bits=BITS,
    )
    return torch.from_numpy(np.array(weight))


def check() -> None:
    """Compare `fake_quantize` with MLX's quantize and dequantize on random weights.

    Raises:
        ValueError: they differ in more than one of 10,000 values.
    """
    generator = torch.Generator().manual_seed(0)
    for shape, size in (((256, 256), 0.02), ((64, 768), 1.0), ((128, 64), 30.0)):
        weight = torch.randn(shape, generator=generator) * size
        expected, actual = unpack(*pack(weight)), fake_quantize(weight)
        differing = ((expected - actual).abs() > 1e-6 * size).float().mean().item()
        # A code may fall the other way where (w - bias) / scale is a half to the last bit.
        if differing > 1e-4:
            raise ValueError(
                f"fake quantization differs from mx.quantize in {differing:.2%} of {shape} weights"
            )
