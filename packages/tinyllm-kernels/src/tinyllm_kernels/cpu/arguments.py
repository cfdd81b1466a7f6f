"""Arguments of `OpSet` functions, converted to the arrays, numbers and tuples of the extension."""

from typing import TYPE_CHECKING

import mlx.core as mx
from jaxtyping import Int32
from tinyllm_ops import PageTable, QuantizedTensor, Weight
from tinyllm_ops.quantization.tensor import arrays_of

from tinyllm_kernels.cpu.interleaved_tensor import InterleavedTensor

if TYPE_CHECKING:  # types alone: this module must also load where the extension is absent
    from tinyllm_kernels._cpu import NativeWeight, PageTableArrays


def native_weight(w: Weight, *, int8_activations: bool = False) -> "NativeWeight":
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
    return w.interleaved if isinstance(w, InterleavedTensor) else arrays_of(w)


def page_table_arrays(page_table: PageTable, positions: Int32[mx.array, "T"]) -> "PageTableArrays":
    """Convert a page table and the positions of its T tokens to the tuple of the extension."""
    arrays = page_table.arrays
    return (
        arrays.block_tables,
        arrays.cu_seqlens_q,
        arrays.seq_lens,
        positions,
        arrays.slot_mapping,
    )
