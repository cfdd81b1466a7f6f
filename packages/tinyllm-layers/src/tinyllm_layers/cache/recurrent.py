"""Caches of recurrent layers: one for sequences in step, and a pool for many sequences."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Float, Float32
from tinyllm_ops import NO_STATE, Phase, StateTable
from tinyllm_ops.checks import require_dtype, require_shape

from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import SequenceCache, StateCache, StateShape, Zeros
from tinyllm_layers.cache.dense import alias

PROMPT_TAIL = 16
"""Number of last tokens of a prompt, in which a chat template opens the answer. They are often not
part of the next prompt of the same conversation, so a state before them is saved too."""

SNAPSHOT_ALIGNMENT = 64
"""A prefill pass saves the state at its end, and at the last multiple of this number of tokens that
is at least `PROMPT_TAIL` tokens before its end."""

INITIAL_SNAPSHOTS = 4
"""Capacity of a new `RecurrentCache`: two snapshots of the prompt, the newest, and the one before.
While a second prompt is prefilled, the cache needs a fifth, and it needs one more for each draft
token."""


class RecurrentPool(StateCache):
    """The states of one layer for many sequences, in P slots. A `StateTable` assigns the slots.

    Attributes:
        conv: the last inputs of the convolution, `P inputs C`.
        state: the matrices of the heads, `P Hv Dv Dk`.
    """

    __slots__ = ("conv", "state")  # without a dict, as `TokenBuffer`

    def __init__(
        self, conv: Float[mx.array, "P inputs C"], state: Float32[mx.array, "P Hv Dv Dk"]
    ) -> None:
        """Make a pool of given slots."""
        self.conv = conv
        self.state = state

    @classmethod
    def empty(cls, num_slots: int, shape: StateShape, zeros: Zeros = mx.zeros) -> RecurrentPool:
        """Make a pool of empty slots. Memory is allocated when the slots are evaluated."""
        return cls(*shape.slots(num_slots, zeros))

    @property
    def num_slots(self) -> int:
        """The number of slots, P."""
        return self.state.shape[0]

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays of all slots."""
        return [self.conv, self.state]

    def slots_and_table(
        self, batch: Batch, shape: StateShape
    ) -> tuple[Float[mx.array, "P inputs C"], Float32[mx.array, "P Hv Dv Dk"], StateTable]:
        """Return all slots, and the table of the batch."""
        if batch.state_table is None:
            raise ValueError("batch: expected a state table for a pool of states, got None")
        return self.conv, self.state, batch.state_table

    def commit(
        self,
        conv: Float[mx.array, "P inputs C"],
        state: Float32[mx.array, "P Hv Dv Dk"],
        table: StateTable,
        phase: Phase,
    ) -> None:
        """Replace the slots by updated slots."""
        self.conv, self.state = conv, state


class RecurrentCache(SequenceCache, StateCache):
    """The states of one layer for B sequences that always have equal lengths.

    A state cannot be computed backwards. The cache can therefore be trimmed only to the lengths
    whose states it keeps:

    - the newest length, all lengths of the last decode pass, and the length before that pass;
    - the end of the prompt, and a length at least `PROMPT_TAIL` tokens before the end.

    The states of all B sequences after one length are a snapshot, which has B consecutive slots:
    snapshot i has the slots from i * B on. A pass loads one snapshot and saves to free ones, so
    that a native primitive can write in place and the state before the pass stays.
    """

    # Without a dict, as `TokenBuffer`.
    __slots__ = ("_conv", "_offset", "_prompt_lengths", "_rows", "_snapshots", "_state")

    def __init__(self) -> None:
        """Make an empty cache. The first pass determines shape and dtype."""
        self._offset = 0
        self._rows = 0
        self._conv: Float[mx.array, "P inputs C"] | None = None
        self._state: Float32[mx.array, "P Hv Dv Dk"] | None = None
        self._snapshots: dict[int, int] = {}  # by length, the number of its snapshot
        self._prompt_lengths: tuple[int, ...] = ()  # the kept lengths of the prompt

    @property
    def offset(self) -> int:
        """The number of tokens seen so far."""
        return self._offset

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays of all slots."""
        return [array for array in (self._conv, self._state) if array is not None]

    def slots_and_table(
        self, batch: Batch, shape: StateShape
    ) -> tuple[Float[mx.array, "P inputs C"], Float32[mx.array, "P Hv Dv Dk"], StateTable]:
        """Return all slots, and a table that saves new snapshots to free slots."""
        lengths = self._lengths_to_save(batch)
        kept_lengths = (*self._prompt_lengths, self._offset)
        used = {self._snapshots[n] for n in kept_lengths if n in self._snapshots}
        free = [number for number in range(len(used) + len(lengths)) if number not in used]
        new = tuple(zip(lengths, free, strict=False))
        count = 1 + max([*used, *(number for _, number in new)], default=0)
        conv, state = self._slots(count, batch, shape)
        table = _table(
            batch.rows,
            batch.length,
            self._snapshots.get(self._offset),
            tuple((length - self._offset, number) for length, number in new),
            state.shape[0],
        )
        return conv, state, table

    def commit(
        self,
        conv: Float[mx.array, "P inputs C"],
        state: Float32[mx.array, "P Hv Dv Dk"],
        table: StateTable,
        phase: Phase,
    ) -> None:
        """Replace the slots by updated slots, and count the new tokens.

        The order matters if Ctrl-C comes between two lines: a length is never kept with the state
        after another length.
        """
        rows = len(table.load_slots)
        length = table.cu_seqlens[1] if rows else 0  # of row 0; all rows have equal lengths
        end = self._offset + length
        new = {
            self._offset + token + 1: slot // rows
            for token, slot in table.save_pairs
            if token < length
        }
        overwritten = set(new.values())
        self._snapshots = {n: i for n, i in self._snapshots.items() if i not in overwritten}
        self._rows = rows
        self._conv, self._state = conv, state
        self._snapshots = self._snapshots | new
        if phase == "prefill" and new:
            before_tail = [n for n in (*self._prompt_lengths, *new) if n <= end - PROMPT_TAIL]
            self._prompt_lengths = (*([max(before_tail)] if before_tail else []), end)
        self._offset = end

    def can_trim(self, length: int) -> bool:
        """Return True if the cache keeps the state after `length` tokens."""
        return length in (0, self._offset) or length in self._snapshots

    def trimmable(self, length: int) -> int:
        """Return the longest kept length of at most `length` tokens."""
        return max((n for n in (*self._snapshots, self._offset) if n <= length), default=0)

    def trim(self, length: int) -> None:
        """Go back to the state after `length` tokens."""
        if not self.can_trim(length):
            raise ValueError(
                f"length: expected 0 or one of {sorted(self._snapshots)}, whose states are kept, "
                f"got {length}"
            )
        self._offset = length
        self._snapshots = {n: i for n, i in self._snapshots.items() if n <= length}
        self._prompt_lengths = tuple(n for n in self._prompt_lengths if n <= length)

    def fork(self) -> RecurrentCache:
        """Return a second cache with the same states."""
        fork = RecurrentCache()
        fork._offset, fork._rows = self._offset, self._rows
        fork._conv = None if self._conv is None else alias(self._conv)
        fork._state = None if self._state is None else alias(self._state)
        fork._snapshots, fork._prompt_lengths = dict(self._snapshots), self._prompt_lengths
        return fork

    def _lengths_to_save(self, batch: Batch) -> list[int]:
        """Return the lengths of the text whose states a pass saves, ascending."""
        start, end = self._offset, self._offset + batch.length
        if batch.length == 0:
            return []
        if batch.phase == "decode":
            return list(range(start + 1, end + 1))
        before_tail = (end - PROMPT_TAIL) // SNAPSHOT_ALIGNMENT * SNAPSHOT_ALIGNMENT
        return [before_tail, end] if before_tail > start else [end]

    def _slots(
        self, snapshots: int, batch: Batch, shape: StateShape
    ) -> tuple[Float[mx.array, "P inputs C"], Float32[mx.array, "P Hv Dv Dk"]]:
        """Return the slots of both parts, for `snapshots` or more snapshots of B slots."""
        conv, state = shape.slots(max(snapshots, INITIAL_SNAPSHOTS) * batch.rows)
        if self._conv is None or self._state is None:
            return conv, state
        if batch.rows != self._rows:
            raise ValueError(f"batch: expected {self._rows} rows, got {batch.rows}")
        for name, stored, new in (("conv", self._conv, conv), ("state", self._state, state)):
            require_shape(name, stored, (stored.shape[0], *new.shape[1:]))
            require_dtype(name, stored, new.dtype)
        missing = state.shape[0] - self._state.shape[0]
        if missing <= 0:
            return self._conv, self._state
        return (
            mx.concatenate([self._conv, conv[:missing]]),
            mx.concatenate([self._state, state[:missing]]),
        )


@functools.lru_cache(maxsize=64)
def _table(
    rows: int, length: int, load: int | None, save: Sequence[tuple[int, int]], num_slots: int
) -> StateTable:
    """Make the table of a pass. The layers of a model share it, because their arguments are equal.

    Args:
        rows: number of sequences, B.
        length: number of new tokens of each sequence.
        load: the number of the snapshot that is loaded; None for empty texts.
        save: pairs of a number of new tokens and the number of the snapshot after them.
        num_slots: number of slots.
    """
    return StateTable.of(
        [
            (
                NO_STATE if load is None else load * rows + row,
                length,
                {n: number * rows + row for n, number in save},
            )
            for row in range(rows)
        ],
        num_slots=num_slots,
    )
