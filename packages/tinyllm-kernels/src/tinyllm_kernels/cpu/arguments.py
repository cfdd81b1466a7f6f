"""Arguments of `OpSet` functions, converted to the arrays, numbers and tuples of the extension."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import mlx.core as mx
from jaxtyping import Float32, Int32
from tinyllm_ops import PageTable, Positions, QuantizedTensor, Weight, Yarn
from tinyllm_ops.checks import position_array, slice_start
from tinyllm_ops.rotary_frequencies import rotary_frequencies

from tinyllm_kernels.cpu.interleaved_tensor import InterleavedTensor

if TYPE_CHECKING:  # types alone: this module must also load where the extension is absent
    from tinyllm_kernels._cpu import NativeWeight, PageTableArrays


def native_weight(w: Weight, *, int8_activations: bool = False) -> NativeWeight:
    """Convert a weight to the tuple of the extension.

    Args:
        w: the weight.
        int8_activations: True if products with w may round the other operand to 8 bits.

    Returns:
        packed, scales, biases, group_size, bits, mode, the number of interleaved rows (0 for MLX's
        layout) and `int8_activations`. A dense weight has bits 0 and mode "".
    """
    if isinstance(w, InterleavedTensor):
        packed, scales, *rest = w.interleaved
        biases = rest[0] if rest else None
        rows = w.rows
    elif isinstance(w, QuantizedTensor):
        packed, scales, biases = w.packed, w.scales, w.biases
        rows = 0
    else:
        return w, None, None, 0, 0, "", 0, False
    return packed, scales, biases, w.group_size, w.bits, w.mode, rows, int8_activations


def weight_arrays(w: Weight) -> tuple[mx.array, ...]:
    """Return the arrays of a weight in their layout in memory, without copies."""
    if isinstance(w, InterleavedTensor):
        return w.interleaved
    return w.arrays if isinstance(w, QuantizedTensor) else (w,)


def with_arrays(w: Weight, arrays: Sequence[mx.array]) -> Weight:
    """Return a weight of the format of `w` with the given arrays: packed, scales and biases."""
    if isinstance(w, mx.array):
        return arrays[0]
    packed, scales, biases = arrays
    return replace(w, packed=packed, scales=scales, biases=biases)


def page_table_arrays(page_table: PageTable, positions: Int32[mx.array, "T"]) -> PageTableArrays:
    """Convert a page table and the positions of its T tokens to the tuple of the extension."""
    arrays = page_table.arrays
    return (
        arrays.block_tables,
        arrays.cu_seqlens_q,
        arrays.seq_lens,
        positions,
        arrays.slot_mapping,
    )


def position_rows(positions: Positions, batch: int, length: int) -> Int32[mx.array, "rows L"]:
    """Return positions as `1 L` or `B L`.

    A slice becomes a constant array, which needs no primitive in MLX's graph.
    """
    if isinstance(positions, slice):
        start = slice_start(positions, length)
        return mx.array([list(range(start, start + length))], dtype=mx.int32)
    return position_array(positions, batch, length).astype(mx.int32)


@functools.cache
def frequencies(dim: int, base: float, scaling: Yarn | None) -> Float32[mx.array, "pairs"]:
    """Return the radians per token of each of the D/2 pairs."""
    return mx.array(rotary_frequencies(dim, base, scaling), dtype=mx.float32)


def magnitude(scaling: Yarn | None) -> float:
    """Return the factor by which YaRN multiplies rotated queries and keys; 1 without YaRN."""
    return 1.0 if scaling is None else scaling.magnitude
