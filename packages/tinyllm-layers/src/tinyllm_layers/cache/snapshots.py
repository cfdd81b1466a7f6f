"""The lengths of a text whose states a `RecurrentCache` keeps, without the states themselves."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tinyllm_ops import NO_STATE, Phase, StateTable

PROMPT_TAIL = 16
"""Number of last tokens of a prompt, in which a chat template opens the answer. They are often not
part of the next prompt of the same conversation, so a state before them is saved too."""

SNAPSHOT_ALIGNMENT = 64
"""A prefill pass saves the state at its end, and at the last multiple of this number of tokens that
is at least `PROMPT_TAIL` tokens before its end."""


@dataclass(frozen=True, eq=False)
class Snapshots:
    """The snapshots of a text of B sequences: each has the states of all of them after a length.

    The caches of a model have seen the same tokens. They share one object, whose changes are
    computed once for all of them: functions of this module return the same object for the same
    arguments.

    Attributes:
        offset: the number of tokens seen so far.
        numbers: by length of the text, the number of its snapshot.
        prompt_lengths: the kept lengths of the prompt.
    """

    offset: int = 0
    numbers: Mapping[int, int] = field(default_factory=dict)
    prompt_lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class SnapshotPlan:
    """The snapshots of a pass.

    Attributes:
        length: the number of new tokens of each sequence.
        load: the number of the snapshot that is loaded; None for empty texts.
        save: pairs of a number of new tokens and the number of the snapshot after them.
        count: the number of snapshots for which the slots must have room.
    """

    length: int
    load: int | None
    save: tuple[tuple[int, int], ...]
    count: int


NO_SNAPSHOTS = Snapshots()
"""The snapshots of an empty text."""


@lru_cache(maxsize=16)
def plan_pass(kept: Snapshots, length: int, phase: Phase) -> SnapshotPlan:
    """Choose the snapshots that a pass over `length` tokens loads and saves.

    The snapshots of the prompt and that of the newest length stay.
    """
    lengths = _lengths_to_save(kept.offset, length, phase)
    kept_lengths = (*kept.prompt_lengths, kept.offset)
    used = {kept.numbers[n] for n in kept_lengths if n in kept.numbers}
    free = [number for number in range(len(used) + len(lengths)) if number not in used]
    save = tuple((n - kept.offset, number) for n, number in zip(lengths, free, strict=False))
    return SnapshotPlan(
        length=length,
        load=kept.numbers.get(kept.offset),
        save=save,
        count=1 + max([*used, *(number for _, number in save)], default=0),
    )


@lru_cache(maxsize=64)
def state_table(plan: SnapshotPlan, rows: int, num_slots: int) -> StateTable:
    """Make the table of a pass: snapshot i has the slots from i * rows on.

    Decode steps repeat a few plans, so that their tables and the arrays of these are made once.
    """
    return StateTable.of(
        [
            (
                NO_STATE if plan.load is None else plan.load * rows + row,
                plan.length,
                {n: number * rows + row for n, number in plan.save},
            )
            for row in range(rows)
        ],
        num_slots=num_slots,
    )


@lru_cache(maxsize=16)
def before_pass(kept: Snapshots, table: StateTable) -> Snapshots:
    """Return the snapshots that are not overwritten by a pass."""
    overwritten = set(_saved(kept, table).values())
    numbers = {n: i for n, i in kept.numbers.items() if i not in overwritten}
    return replace(kept, numbers=numbers)


@lru_cache(maxsize=16)
def after_pass(kept: Snapshots, table: StateTable, phase: Phase) -> Snapshots:
    """Return the snapshots after a pass over the tokens of a table."""
    new = _saved(kept, table)
    end = kept.offset + _length(table)
    prompt_lengths = kept.prompt_lengths
    if phase == "prefill" and new:
        before_tail = [n for n in (*prompt_lengths, *new) if n <= end - PROMPT_TAIL]
        prompt_lengths = (*([max(before_tail)] if before_tail else []), end)
    return Snapshots(end, {**before_pass(kept, table).numbers, **new}, prompt_lengths)


@lru_cache(maxsize=16)
def trimmed(kept: Snapshots, length: int) -> Snapshots:
    """Return the snapshots of the first `length` tokens."""
    return Snapshots(
        length,
        {n: i for n, i in kept.numbers.items() if n <= length},
        tuple(n for n in kept.prompt_lengths if n <= length),
    )


def _lengths_to_save(start: int, length: int, phase: Phase) -> list[int]:
    """Return the lengths of the text whose states a pass saves, ascending."""
    end = start + length
    if length == 0:
        return []
    if phase == "decode":
        return list(range(start + 1, end + 1))
    before_tail = (end - PROMPT_TAIL) // SNAPSHOT_ALIGNMENT * SNAPSHOT_ALIGNMENT
    return [before_tail, end] if before_tail > start else [end]


def _length(table: StateTable) -> int:
    """Return the number of new tokens of a sequence; all sequences have equal lengths."""
    return table.cu_seqlens[1] if len(table.load_slots) else 0


def _saved(kept: Snapshots, table: StateTable) -> dict[int, int]:
    """Return the snapshots that a pass saves: by length of the text, their numbers."""
    rows, length = len(table.load_slots), _length(table)
    return {
        kept.offset + token + 1: slot // rows for token, slot in table.save_pairs if token < length
    }
