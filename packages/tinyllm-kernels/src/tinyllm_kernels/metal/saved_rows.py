"""The saved states of a pass as rows of the output of a kernel.

A kernel cannot change an array in place, because MLX gives it a new array for each output. A pass
over few of many slots would therefore copy all of them. `SavedRows` lets a kernel write only the
saved states, row by row, and MLX writes these rows to their slots. MLX does that in place if
nothing else refers to the old state. A running kernel refers to its inputs, so a caller must
evaluate the updated state after the results of the pass, not together with them. A pass that saves
every slot needs no such write: the rows of the kernel are the slots.
"""

import functools
from dataclasses import dataclass
from itertools import count, pairwise

import mlx.core as mx
from jaxtyping import Int32
from tinyllm_ops import NO_STATE, StateTable


@dataclass(frozen=True, eq=False)
class SavedRows:
    """A `StateTable` in the form that kernels use: by token, with output rows for saved states.

    Attributes:
        starts: index of the first token of each token's sequence.
        loads: slot with the state before the first token of each token's sequence, or -1.
        rows: row of the kernel's output that gets the state after each token, or -1.
        num_rows: number of rows of the output.
        slots: slot of each row, or None if row i is slot i and every slot is saved.
    """

    starts: Int32[mx.array, "T"]
    loads: Int32[mx.array, "T"]
    rows: Int32[mx.array, "T"]
    num_rows: int
    slots: Int32[mx.array, "rows"] | None

    def store(self, state: mx.array, saved: mx.array) -> mx.array:
        """Return the state with the rows of `saved` in their slots.

        Args:
            state: all slots. MLX writes the array in place if nothing else refers to it when the
                graph is computed, and copies it otherwise.
            saved: the rows. Without saves it has one row, which is not read.
        """
        if self.slots is None:
            return saved
        if self.num_rows == 0:
            return state
        state = state[...]  # a second array object: the update must not change the caller's array
        state[self.slots] = saved
        return state


@functools.lru_cache(maxsize=4)
def saved_rows(table: StateTable) -> SavedRows:
    """Convert the table of a pass, once for all of its layers."""
    pairs = list(zip(table.load_slots, pairwise(table.cu_seqlens), strict=True))
    starts = [first for _, (first, end) in pairs for _ in range(first, end)]
    loads = [load for load, (first, end) in pairs for _ in range(first, end)]
    saved = [slot for slot in table.save_slots if slot != NO_STATE]
    if len(saved) == table.num_slots:  # every slot, because no slot is saved twice
        rows, slots = list(table.save_slots), None
    else:
        row_numbers = count()
        rows = [slot if slot == NO_STATE else next(row_numbers) for slot in table.save_slots]
        slots = _int32(saved)
    return SavedRows(_int32(starts), _int32(loads), _int32(rows), len(saved), slots)


def _int32(numbers: list[int]) -> mx.array:
    return mx.array(numbers, dtype=mx.int32)
