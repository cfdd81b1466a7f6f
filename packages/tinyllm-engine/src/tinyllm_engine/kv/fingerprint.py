"""What tells two models apart."""

from __future__ import annotations

from hashlib import blake2b
from typing import cast

import mlx.core as mx
from tinyllm_ops import QuantizedTensor
from tinyllm_qwen import Qwen

_SAMPLE = 512
"""Numbers of each weight that are looked at: a fine-tuned model differs nearly everywhere."""


def fingerprint(model: Qwen) -> str:
    """A hash of a model's config and of a sample of each of its weights.

    Models with one fingerprint give a text the same keys and values.
    """
    digest = blake2b(repr((model.config, model.dtype)).encode(), digest_size=16)
    for weight in model.weights():
        if isinstance(weight, QuantizedTensor):
            digest.update(repr((weight.bits, weight.group_size, weight.mode)).encode())
        for array in weight.arrays if isinstance(weight, QuantizedTensor) else (weight,):
            digest.update(repr((array.shape, array.dtype)).encode())
            numbers = array.flatten()
            digest.update(buffer(numbers[:: max(1, numbers.size // _SAMPLE)]))
    return digest.hexdigest()


def buffer(array: mx.array) -> memoryview:
    """The memory of an array; MLX's type stubs do not tell that it is lent."""
    return memoryview(cast("bytes", mx.contiguous(array).view(mx.uint8)))
