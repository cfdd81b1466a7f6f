"""Quantization: MLX's affine 4-bit codes, as a function of PyTorch tensors that gradients pass through.

A row is cut into groups of 64; in each, w ~ scale * code + bias with codes 0..15, by the formula of `mx.quantize`: the edge
of the range that is farther from zero is hit exactly, and so is zero when the range holds it.
"""

import mlx.core as mx
import numpy as np
import torch
from torch import Tensor

GROUP_SIZE = 64
BITS = 4
SCALE_DTYPE = torch.float16
_EPS = 1e-7


def fake_quantize(weight: Tensor) -> Tensor:
    """The values that `weight` (O I, float32) has after quantization; its gradient is passed through unchanged."""
    with torch.no_grad():
        levels = (1 << BITS) - 1
        w = weight.unflatten(-1, (-1, GROUP_SIZE))  # O I/64 64
        low, high = w.amin(-1, keepdim=True), w.amax(-1, keepdim=True)
        negative = low.abs() > high.abs()
        scale = ((high - low) / levels).clamp_min(_EPS)
        scale = torch.where(negative, scale, -scale)
        edge = torch.where(negative, low, high)
        steps = torch.round(edge / scale)
        bias = torch.where(steps != 0, edge, torch.zeros_like(edge))
        scale = torch.where(steps != 0, edge / steps, scale)
        codes = torch.round((w - bias) / scale).clamp(0, levels)
        # The file stores scale and bias in 16 bits, after the codes are chosen.
        stored = codes * scale.to(SCALE_DTYPE).float() + bias.to(SCALE_DTYPE).float()
        value = stored.flatten(-2)
    return value + (weight - weight.detach())


def pack(weight: Tensor, dtype: mx.Dtype = mx.float16) -> tuple[mx.array, mx.array, mx.array]:
    """`weight` as MLX's packed codes, scales and biases, the last two in `dtype`."""
    codes, scales, biases = mx.quantize(
        mx.array(weight.detach().float().numpy()), group_size=GROUP_SIZE, bits=BITS
    )
    return codes, scales.astype(dtype), biases.astype(dtype)


def unpack(codes: mx.array, scales: mx.array, biases: mx.array) -> Tensor:
    """The float32 weight of packed codes."""
    weight = mx.dequantize(
        codes,
        scales.astype(mx.float32),
        biases.astype(mx.float32),
        group_size=GROUP_SIZE,
        bits=BITS,
    )
    return torch.from_numpy(np.array(weight))


def check(seed: int = 0) -> None:
    """Raises ValueError unless `fake_quantize` gives what MLX's quantize and dequantize give, on random weights."""
    generator = torch.Generator().manual_seed(seed)
    for shape, size in (((256, 256), 0.02), ((64, 768), 1.0), ((128, 64), 30.0)):
        weight = torch.randn(shape, generator=generator) * size
        expected, actual = unpack(*pack(weight)), fake_quantize(weight)
        differing = ((expected - actual).abs() > 1e-6 * size).float().mean().item()
        # A code may fall the other way where (w - bias) / scale is a half to the last bit.
        if differing > 1e-4:
            raise ValueError(
                f"fake quantization differs from mx.quantize in {differing:.2%} of {shape} weights"
            )
