"""Caches of recurrent layers: one for sequences in step, and a pool for many sequences."""

import mlx.core as mx
from jaxtyping import Float, Float32
from tinyllm_ops import Phase, StateTable
from tinyllm_ops.checks import require_dtype, require_shape

from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import SequenceCache, StateCache, StateShape, Zeros
from tinyllm_layers.cache.dense import alias
from tinyllm_layers.cache.snapshots import (
    NO_SNAPSHOTS,
    after_pass,
    before_pass,
    plan_pass,
    state_table,
    trimmed,
)

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
    def empty(cls, num_slots: int, shape: StateShape, zeros: Zeros = mx.zeros) -> "RecurrentPool":
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
    __slots__ = ("_conv", "_kept", "_rows", "_shape", "_state")

    def __init__(self) -> None:
        """Make an empty cache. The first pass determines shape and dtype."""
        self._kept = NO_SNAPSHOTS
        self._rows = 0
        self._conv: Float[mx.array, "P inputs C"] | None = None
        self._state: Float32[mx.array, "P Hv Dv Dk"] | None = None
        self._shape: StateShape | None = None  # the last one that fitted

    @property
    def offset(self) -> int:
        """The number of tokens seen so far."""
        return self._kept.offset

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays of all slots."""
        return [array for array in (self._conv, self._state) if array is not None]

    def slots_and_table(
        self, batch: Batch, shape: StateShape
    ) -> tuple[Float[mx.array, "P inputs C"], Float32[mx.array, "P Hv Dv Dk"], StateTable]:
        """Return all slots, and a table that saves new snapshots to free slots."""
        batch.check_follows(self.offset)
        plan = plan_pass(self._kept, batch.length, batch.phase)
        conv, state = self._slots(plan.count, batch, shape)
        return conv, state, state_table(plan, batch.rows, state.shape[0])

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
        after = after_pass(self._kept, table, phase)
        self._kept = before_pass(self._kept, table)
        self._rows = len(table.load_slots)
        self._conv, self._state = conv, state
        self._kept = after

    def can_trim(self, length: int) -> bool:
        """Return True if the cache keeps the state after `length` tokens."""
        return length in (0, self.offset) or length in self._kept.numbers

    def trimmable(self, length: int) -> int:
        """Return the longest kept length of at most `length` tokens."""
        return max((n for n in (*self._kept.numbers, self.offset) if n <= length), default=0)

    def trim(self, length: int) -> None:
        """Go back to the state after `length` tokens."""
        if not self.can_trim(length):
            raise ValueError(
                f"length: expected 0 or one of {sorted(self._kept.numbers)}, whose states are "
                f"kept, got {length}"
            )
        self._kept = trimmed(self._kept, length)

    def fork(self) -> "RecurrentCache":
        """Return a second cache with the same states."""
        fork = RecurrentCache()
        fork._kept, fork._rows = self._kept, self._rows
        fork._conv = None if self._conv is None else alias(self._conv)
        fork._state = None if self._state is None else alias(self._state)
        return fork

    def _slots(
        self, snapshots: int, batch: Batch, shape: StateShape
    ) -> tuple[Float[mx.array, "P inputs C"], Float32[mx.array, "P Hv Dv Dk"]]:
        """Return the slots of both parts, for `snapshots` or more snapshots of B slots."""
        count = max(snapshots, INITIAL_SNAPSHOTS) * batch.rows
        if self._conv is None or self._state is None:
            return shape.slots(count)
        if batch.rows != self._rows:
            raise ValueError(f"batch: expected {self._rows} rows, got {batch.rows}")
        if shape is not self._shape:
            parts = zip(("conv", "state"), self.arrays, shape.slots(1), strict=True)
            for name, stored, new in parts:
                require_shape(name, stored, (stored.shape[0], *new.shape[1:]))
                require_dtype(name, stored, new.dtype)
            self._shape = shape
        missing = count - self._state.shape[0]
        if missing <= 0:
            return self._conv, self._state
        conv, state = shape.slots(missing)
        return mx.concatenate([self._conv, conv]), mx.concatenate([self._state, state])
