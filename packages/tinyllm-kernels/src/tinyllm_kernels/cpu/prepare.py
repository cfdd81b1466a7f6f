"""Conversion of weights to the memory layout that CPU kernels read fastest."""

import warnings
from collections.abc import MutableMapping

import mlx.core as mx
from tinyllm_ops import QuantizedTensor, Weight

from tinyllm_kernels import _cpu as native
from tinyllm_kernels.cpu.arguments import native_weight, weight_arrays
from tinyllm_kernels.cpu.interleaved_tensor import InterleavedTensor


def prepare(weights: MutableMapping[str, Weight]) -> None:
    """Interleave the rows of weights if the kernels of this machine expect that layout.

    Affine codes of 2 and 3 bits are stored in 4 bits, and codes of 5 and 6 bits in 8, because
    products of integers read these widths. All weights are then moved to huge pages.

    Rows are interleaved in place if nothing but `weights` refers to the arrays, so that loading
    needs no more memory than the weights as stored. The interleaving of all weights ends before the
    first weight is moved to huge pages, because a huge page of 2 MB often holds bytes of two
    weights.

    Args:
        weights: weights by name, changed in place.
    """
    for name in list(weights):
        weights[name] = _interleaved(weights.pop(name))
        mx.eval(*weight_arrays(weights[name]))
    for weight in weights.values():
        for array in weight_arrays(weight):
            native.use_huge_pages(array)


def prepare_int8(weights: MutableMapping[str, Weight]) -> None:
    """Prepare weights, and warn if no product with them rounds activations to 8 bits."""
    prepare(weights)
    converted = [native_weight(weight, int8_activations=True) for weight in weights.values()]
    if not any(native.uses_int8_activations(w) for w in converted):
        reason = (
            "expected affine weights of 4 bits with 16-bit scales, or mxfp4 (with VNNI, AMX or "
            "NEON also affine of 8 bits), got none"
        )
    elif {w.dtype for w in weights.values() if isinstance(w, mx.array)} == {mx.float32}:
        reason = "expected activations of 16 bits, got float32"
    else:
        return
    warnings.warn(f"cpu-int8: {reason}: this model is computed as by cpu", stacklevel=2)


def prepared_bytes(weight: Weight) -> int:
    """Return the bytes that a weight takes after `prepare`, from its shapes and dtypes alone."""
    if not isinstance(weight, QuantizedTensor) or isinstance(weight, InterleavedTensor):
        return weight.nbytes
    _, stored_bits = native.fastest_layout(native_weight(weight))
    return weight.nbytes + weight.packed.nbytes // weight.bits * (stored_bits - weight.bits)


def _interleaved(weight: Weight) -> Weight:
    """Return the weight in the layout that the kernels of this machine read fastest."""
    if not isinstance(weight, QuantizedTensor) or isinstance(weight, InterleavedTensor):
        return weight
    rows, stored_bits = native.fastest_layout(native_weight(weight))
    if not rows:
        return weight
    group_size, bits, mode, arrays = weight.group_size, weight.bits, weight.mode, [*weight.arrays]
    del weight  # a second reference to the arrays would make `interleave` copy them
    if stored_bits != bits:
        arrays[0] = native.widen(arrays[0], bits)
    interleaved = [native.interleave(arrays.pop(0), rows) for _ in range(len(arrays))]
    return InterleavedTensor(interleaved, rows, group_size, stored_bits, mode)
