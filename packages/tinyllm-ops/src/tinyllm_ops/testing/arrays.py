"""Test inputs of an op in its dtype, and the same rounded numbers in float64 for the oracle."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tinyllm_ops.quantization.tensor import QuantizedTensor, Weight
from tinyllm_ops.testing import oracle


def rounded(values: NDArray[np.float64], dtype: mx.Dtype) -> mx.array:
    """Make an MLX array of `values`, rounded to float32 and then to `dtype`."""
    return mx.array(values.astype(np.float32)).astype(dtype)


def normal(
    shape: Sequence[int], dtype: mx.Dtype = mx.float32, *, seed: int, magnitude: float = 1.0
) -> mx.array:
    """Draw normal numbers of standard deviation `magnitude`, rounded to `dtype`."""
    numbers = np.random.default_rng(seed).normal(size=tuple(shape))
    return rounded(np.asarray(numbers * magnitude), dtype)


def exact(x: Weight) -> NDArray[np.float64]:
    """Return the numbers of `x` in float64, dequantized by the oracle if `x` is quantized."""
    if isinstance(x, QuantizedTensor):
        biases = None if x.biases is None else exact(x.biases)
        scales = np.array(x.scales) if x.biases is None else exact(x.scales)
        return oracle.dequantize(np.array(x.packed), scales, biases, x.group_size, x.bits, x.mode)
    return np.array(x.astype(mx.float32)).astype(np.float64)
