"""Arguments of the contract in the form that the extension takes: arrays, numbers and tuples."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import mlx.core as mx
from jaxtyping import Float32, Int32
from tinyllm_ops import PageTable, Positions, QuantizedTensor, Weight, Yarn
from tinyllm_ops.reference.rope import position_array, slice_start
from tinyllm_ops.rotary_frequencies import rotary_frequencies

from tinyllm_kernels.cpu.interleaved_tensor import InterleavedTensor

if TYPE_CHECKING:  # names of types alone: this module loads where the extension does not
    from tinyllm_kernels._cpu import NativeWeight, PageTableArrays


def native_weight(w: Weight) -> NativeWeight:
    """Return the arrays and the format of a weight as the tuple that the extension takes."""
    if isinstance(w, InterleavedTensor):
        packed, scales, biases = w.interleaved
        return packed, scales, biases, w.group_size, w.bits, w.mode, w.rows
    if isinstance(w, QuantizedTensor):
        return w.packed, w.scales, w.biases, w.group_size, w.bits, w.mode, 0
    return w, None, None, 0, 0, "", 0


def weight_arrays(w: Weight) -> tuple[mx.array, ...]:
    """Return the arrays of a weight as they lie in memory."""
    if isinstance(w, InterleavedTensor):
        return w.interleaved
    return w.arrays if isinstance(w, QuantizedTensor) else (w,)


def with_arrays(w: Weight, arrays: Sequence[mx.array]) -> Weight:
    """Return a weight in the format of `w` that consists of other arrays."""
    if isinstance(w, mx.array):
        return arrays[0]
    packed, scales, biases = arrays
    return replace(w, packed=packed, scales=scales, biases=biases)


def page_table_arrays(pages: PageTable, positions: Int32[mx.array, "T"]) -> PageTableArrays:
    """Return the arrays of a page table, and the positions of the tokens, for the extension."""
    arrays = pages.arrays
    return (
        arrays.block_tables,
        arrays.cu_seqlens_q,
        arrays.seq_lens,
        positions,
        arrays.slot_mapping,
    )


def position_rows(positions: Positions, batch: int, length: int) -> Int32[mx.array, "rows L"]:
    """Return positions as `1 L` or `B L`; a slice becomes a constant, which costs no primitive."""
    if isinstance(positions, slice):
        start = slice_start(positions, length)
        return mx.array([list(range(start, start + length))], dtype=mx.int32)
    return position_array(positions, batch, length).astype(mx.int32)


@functools.cache
def frequencies(dim: int, base: float, scaling: Yarn | None) -> Float32[mx.array, "pairs"]:
    """Return the radians per token of each of the D/2 pairs."""
    return mx.array(rotary_frequencies(dim, base, scaling), dtype=mx.float32)


def magnitude(scaling: Yarn | None) -> float:
    """Return the factor that lengthens rotated queries and keys (YaRN)."""
    return 1.0 if scaling is None else scaling.magnitude
