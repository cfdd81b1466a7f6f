"""State tables, which assign the states of recurrent layers to the sequences of a forward pass."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import mlx.core as mx
from jaxtyping import Int32

NO_STATE = -1
"""In `load_slots`, the state of an empty text, which is zeros. In `save_slots`, a state that is not
saved."""


@dataclass(frozen=True, eq=False)
class StateTable:
    """T tokens of n sequences: the state that each sequence starts from, and the states to save.

    A recurrent layer keeps states in P numbered slots. Tokens `cu_seqlens[i]` to
    `cu_seqlens[i + 1]` of the T tokens are the new tokens of sequence i. The state before its first
    token is loaded from slot `load_slots[i]`. The state after token t is saved to slot
    `save_slots[t]`. All states of a pass are loaded before any state is saved.

    The slots express what a server does with states. A sequence that saves to the slot it loads
    goes on. Two sequences that load one slot are forks of one text. A save in the middle of a
    prompt is a snapshot of its prefix. A save after each draft token makes it possible to go on
    after any of them.

    The constructor checks all numbers on the host and stores them as tuples. Ops rely on that check
    and do not repeat it.

    Attributes:
        cu_seqlens: index of the first token of each sequence, and then T: n + 1 ascending numbers.
        load_slots: for each sequence the slot of the state before its first token, or `NO_STATE`.
        save_slots: for each token the slot for the state after the token, or `NO_STATE`.
        num_slots: number of slots, P.

    Raises:
        ValueError: if a slot does not exist or is saved twice, a sequence loads a slot that another
            sequence saves, or the lengths of the arguments do not fit.
    """

    cu_seqlens: Sequence[int]
    load_slots: Sequence[int]
    save_slots: Sequence[int]
    num_slots: int

    def __post_init__(self) -> None:
        """Copy the numbers, so that no caller can change them later, and check the copies."""
        for name in ("cu_seqlens", "load_slots", "save_slots"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        starts = self.cu_seqlens
        if len(starts) != len(self.load_slots) + 1:
            raise ValueError(
                f"cu_seqlens: expected {len(self.load_slots) + 1} numbers for "
                f"{len(self.load_slots)} load_slots, got {len(starts)}"
            )
        ascending = all(first <= stop for first, stop in pairwise(starts))
        if starts[0] != 0 or starts[-1] != self.count or not ascending:
            raise ValueError(
                f"cu_seqlens: expected ascending numbers from 0 to {self.count}, the tokens of "
                f"save_slots, got {list(starts)}"
            )
        self._check_slots()

    def _check_slots(self) -> None:
        for name, slots in (("load_slots", self.load_slots), ("save_slots", self.save_slots)):
            wrong = [slot for slot in slots if not NO_STATE <= slot < self.num_slots]
            if wrong:
                raise ValueError(
                    f"{name}: expected slots from 0 to {self.num_slots - 1} or {NO_STATE}, "
                    f"got {wrong[0]}"
                )
        owner: dict[int, int] = {}  # by slot, the sequence that saves it
        for sequence, (first, stop) in enumerate(pairwise(self.cu_seqlens)):
            saved = [slot for slot in self.save_slots[first:stop] if slot != NO_STATE]
            twice = [slot for slot in saved if slot in owner]
            twice += [slot for slot, uses in Counter(saved).items() if uses > 1]
            if twice:
                raise ValueError(f"save_slots: expected each slot once, got {twice[0]} twice")
            owner |= dict.fromkeys(saved, sequence)
        for sequence, slot in enumerate(self.load_slots):
            if owner.get(slot, sequence) != sequence:
                raise ValueError(
                    f"load_slots: expected a slot that no other sequence saves, got {slot} for "
                    f"sequence {sequence}, which sequence {owner[slot]} saves"
                )

    @classmethod
    def of(
        cls, chunks: Sequence[tuple[int, int, Mapping[int, int]]], *, num_slots: int
    ) -> "StateTable":
        """Make the table of a pass over one chunk of each sequence.

        Args:
            chunks: for each sequence the slot that it loads or `NO_STATE`, the number of its new
                tokens, and the slots of the states to save. The state after the first n new tokens
                is saved in slot `saves[n]`.
            num_slots: number of slots, P.

        Raises:
            ValueError: if a chunk saves a state after more tokens than it has, or as in the
                constructor.
        """
        for _, length, saves in chunks:
            if not all(1 <= n <= length for n in saves):
                raise ValueError(
                    f"chunks: expected states after 1 to {length} tokens, got {sorted(saves)}"
                )
        return cls(
            cu_seqlens=[0, *accumulate(length for _, length, _ in chunks)],
            load_slots=[load for load, _, _ in chunks],
            save_slots=[
                saves.get(n, NO_STATE) for _, length, saves in chunks for n in range(1, length + 1)
            ],
            num_slots=num_slots,
        )

    @classmethod
    def rows(cls, rows: int, length: int) -> "StateTable":
        """Make the table of `rows` sequences of `length` new tokens; row b has slot b.

        Args:
            rows: number of sequences, and of slots.
            length: number of new tokens of each sequence.
        """
        chunks = [(row, length, {length: row} if length else {}) for row in range(rows)]
        return cls.of(chunks, num_slots=rows)

    @property
    def count(self) -> int:
        """The number of tokens of the pass, T."""
        return len(self.save_slots)

    @property
    def sequences(self) -> Sequence[tuple[int, int, int]]:
        """For each sequence the slot that it loads, its first token, and the end of its tokens."""
        pairs = zip(self.load_slots, pairwise(self.cu_seqlens), strict=True)
        return tuple((load, first, stop) for load, (first, stop) in pairs)

    @cached_property
    def save_pairs(self) -> Sequence[tuple[int, int]]:
        """The index of each token whose state is saved, and the slot of the state."""
        return tuple(
            (token, slot) for token, slot in enumerate(self.save_slots) if slot != NO_STATE
        )

    @cached_property
    def arrays(self) -> "StateArrays":
        """The numbers of the table as arrays on the device, made at the first access."""
        return StateArrays(
            *(
                mx.array(list(numbers), dtype=mx.int32) if numbers else mx.zeros((0,), mx.int32)
                for numbers in (self.cu_seqlens, self.load_slots, self.save_slots)
            )
        )


@dataclass(frozen=True, eq=False)
class StateArrays:
    """The numbers of a `StateTable` as arrays."""

    cu_seqlens: Int32[mx.array, "starts"]
    load_slots: Int32[mx.array, "n"]
    save_slots: Int32[mx.array, "T"]
