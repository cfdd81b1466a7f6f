"""Weights that nobody trained: drawn as bits, in the form in which they are computed with.

What a product costs does not depend on the numbers, as long as they are numbers: quantizing
floats, or drawing normal ones, would take minutes for nothing.
"""

import math

import mlx.core as mx
import numpy as np
from tinyllm_ops import QuantizedTensor, Weight
from tinyllm_ops.quantization.tensor import AFFINE
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.weights import Weights, expected_shapes

from tinyllm_bench.weight_format import WeightFormat

# Sign and mantissa are random, the exponent is that of 2^-6: numbers of 0.016 to 0.031, as
# trained weights have them, so that nothing overflows on its way through a deep model.
_FLOATS = {
    mx.float32: (np.uint32, 0x807FFFFF, 121 << 23),
    mx.float16: (np.uint16, 0x83FF, 9 << 10),
    mx.bfloat16: (np.uint16, 0x807F, 121 << 7),
}
_LARGEST = 2.0**-5


def random_weights(config: QwenConfig, form: WeightFormat, seed: int = 0) -> Weights:
    """Every tensor that the config implies; norms are ones."""
    generator = np.random.default_rng(seed)
    weights: Weights = {}
    for name, shape in expected_shapes(config).items():
        if name.endswith("norm.weight"):
            weights[name] = mx.ones(shape, form.dtype)
        elif len(shape) == 1 or not form.packed:
            weights[name] = random_floats(shape, form.dtype, generator)
        else:
            weights[name] = random_packed(shape, form, generator)
    return weights


def random_floats(
    shape: tuple[int, ...], dtype: mx.Dtype, generator: np.random.Generator
) -> mx.array:
    """Numbers between 2^-6 and 2^-5, of either sign."""
    word, kept, exponent = _FLOATS[dtype]
    bits = _draw(math.prod(shape) * np.dtype(word).itemsize, generator).view(word)
    bits &= word(kept)
    bits |= word(exponent)
    return mx.array(bits).view(dtype).reshape(shape)


def random_packed(
    shape: tuple[int, ...], form: WeightFormat, generator: np.random.Generator
) -> Weight:
    """Random codes under scales that make small numbers of them."""
    lead, columns = shape[:-1], shape[-1]
    words = (*lead, columns * form.bits // 32)
    codes = _draw(math.prod(words) * 4, generator)
    groups = (*lead, columns // form.group_size)
    scales, biases = mx.full(groups, _scale(form), mx.uint8), None
    if form.mode == AFFINE:
        step = 2 * _LARGEST / (2**form.bits - 1)
        scales = mx.full(groups, step, form.dtype)
        biases = mx.full(groups, -_LARGEST, form.dtype)
    elif form.bits == 8:
        codes &= np.uint8(0xBF)  # without the highest bit of the exponent no code is NaN
    packed = mx.array(codes.view(np.uint32)).reshape(words)
    return QuantizedTensor(packed, scales, biases, form.group_size, form.bits, form.mode)


def _draw(
    count: int, generator: np.random.Generator
) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """Random bytes; always whole words of 8, cut to what is asked for."""
    return generator.integers(0, 2**64, -(-count // 8), np.uint64).view(np.uint8)[:count]


def _scale(form: WeightFormat) -> int:
    """The byte of a scale, for codes that reach 6 in 4 bits and, cut as above, 1.875 in 8."""
    if form.mode == "nvfp4":
        return 2  # E4M3: 2 * 2^-9
    return 127 - (6 if form.bits == 8 else 8)  # E8M0: 2^-6 or 2^-8
