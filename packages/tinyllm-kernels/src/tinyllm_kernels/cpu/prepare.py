"""The layout of weights in memory that CPU kernels read fastest."""

from __future__ import annotations

from collections.abc import MutableMapping

import mlx.core as mx
from tinyllm_ops import QuantizedTensor, Weight

from tinyllm_kernels import _cpu as native
from tinyllm_kernels.cpu.arguments import native_weight, weight_arrays
from tinyllm_kernels.cpu.interleaved_tensor import InterleavedTensor


def prepare(weights: MutableMapping[str, Weight]) -> None:
    """Interleave rows of weights for kernels that need it, and move all weights to huge pages.

    Rows are interleaved in place if nothing but `weights` holds their arrays, so that peak memory
    stays that of the checkpoint. Huge pages come last, because a huge page of 2 MB often holds
    parts of two weights.

    Args:
        weights: weights by name, changed in place.
    """
    for name in list(weights):
        weights[name] = _interleaved(weights.pop(name))
        mx.eval(*weight_arrays(weights[name]))
    for weight in weights.values():
        for part in weight_arrays(weight):
            native.use_huge_pages(part)


def _interleaved(weight: Weight) -> Weight:
    """Return the weight in the layout that products of this machine read."""
    if not isinstance(weight, QuantizedTensor) or isinstance(weight, InterleavedTensor):
        return weight
    rows = native.interleaves(native_weight(weight))
    if not rows:
        return weight
    form = (weight.group_size, weight.bits, weight.mode)
    parts = list(weight.arrays)
    del weight  # otherwise this name would hold the parts, and they would be copied
    made = [native.interleave(parts.pop(0), rows) for _ in range(3)]
    return InterleavedTensor(made, rows, *form)
