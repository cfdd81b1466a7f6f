"""Random weights, drawn directly as bits of the stored format.

The cost of a product does not depend on the values, as long as they are finite. Drawing normal
floats and quantizing them would take minutes for a large model.
"""

import math

import mlx.core as mx
import numpy as np
from tinyllm_ops import QuantizedTensor, Weight
from tinyllm_ops.quantization.tensor import AFFINE
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.joint_projections import split_projections
from tinyllm_qwen.checkpoint.schema import expected_shapes, is_matrix
from tinyllm_qwen.checkpoint.weights import Weights

from tinyllm_bench.models.weight_format import WeightFormat

# For each dtype: the word, the mask of random bits (sign and mantissa), and the exponent of 2^-6.
# Numbers of 0.016 to 0.031 in magnitude are as small as trained weights, so that a deep model does
# not overflow.
_FLOATS = {
    mx.float32: (np.uint32, 0x807FFFFF, 121 << 23),
    mx.float16: (np.uint16, 0x83FF, 9 << 10),
    mx.bfloat16: (np.uint16, 0x807F, 121 << 7),
}
_LARGEST = 2.0**-5
# Scales, as bytes, that make the dequantized numbers small. Codes of mxfp4 and nvfp4 reach 6. Codes
# of mxfp8, without the highest bit of the exponent, reach 1.875.
_SCALE_BYTES = {
    "mxfp4": 127 - 8,  # E8M0: 2^-8
    "mxfp8": 127 - 6,  # E8M0: 2^-6
    "nvfp4": 2,  # E4M3: 2 * 2^-9
}


def random_weights(config: QwenConfig, weight_format: WeightFormat) -> Weights:
    """Draw every tensor of a model, always the same. Norms are ones."""
    generator = np.random.default_rng(0)

    def tensor(name: str, shape: tuple[int, ...]) -> Weight:
        if name.endswith("norm.weight"):
            return mx.ones(shape, weight_format.dtype)
        if name.endswith(".A_log"):  # float32 in all formats
            return random_floats(shape, mx.float32, generator)
        if not is_matrix(name, shape):
            return random_floats(shape, weight_format.dtype, generator)
        return random_tensor(shape, weight_format, generator)

    weights = {name: tensor(name, shape) for name, shape in expected_shapes(config).items()}
    split_projections(weights, config)
    return weights


def random_tensor(
    shape: tuple[int, ...], weight_format: WeightFormat, generator: np.random.Generator
) -> Weight:
    """Draw a tensor. In a quantized format, matrices are quantized and vectors are not."""
    if len(shape) == 1 or not weight_format.is_quantized:
        return random_floats(shape, weight_format.dtype, generator)
    return random_quantized(shape, weight_format, generator)


def random_floats(
    shape: tuple[int, ...], dtype: mx.Dtype, generator: np.random.Generator
) -> mx.array:
    """Draw numbers of 2^-6 to 2^-5 in magnitude, of either sign."""
    word, kept, exponent = _FLOATS[dtype]
    bits = _random_bytes(math.prod(shape) * np.dtype(word).itemsize, generator).view(word)
    bits &= word(kept)
    bits |= word(exponent)
    return mx.array(bits).view(dtype).reshape(shape)


def random_quantized(
    shape: tuple[int, ...], weight_format: WeightFormat, generator: np.random.Generator
) -> QuantizedTensor:
    """Draw random codes, with scales that make the dequantized numbers small."""
    bits, group_size, mode = weight_format.bits, weight_format.group_size, weight_format.mode
    lead, columns = shape[:-1], shape[-1]
    words = (*lead, columns * bits // 32)
    codes = _random_bytes(math.prod(words) * 4, generator)
    groups = (*lead, columns // group_size)
    biases = None
    if mode == AFFINE:
        scales = mx.full(groups, 2 * _LARGEST / (2**bits - 1), weight_format.dtype)
        biases = mx.full(groups, -_LARGEST, weight_format.dtype)
    else:
        scales = mx.full(groups, _SCALE_BYTES[mode], mx.uint8)
        if bits == 8:
            codes &= np.uint8(0xBF)  # without the highest bit of the exponent no code is NaN
    packed = mx.array(codes.view(np.uint32)).reshape(words)
    return QuantizedTensor(packed, scales, biases, group_size, bits, mode)


def _random_bytes(
    count: int, generator: np.random.Generator
) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """Draw words of 8 bytes, which is fast, and return the first `count` bytes."""
    return generator.integers(0, 2**64, -(-count // 8), np.uint64).view(np.uint8)[:count]
