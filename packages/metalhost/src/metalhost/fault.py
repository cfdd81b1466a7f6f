"""What a kernel was caught doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """The kinds of faults, by their names in reports."""

    OUT_OF_BOUNDS = "out-of-bounds"
    RACE = "race"
    UNINITIALISED = "uninitialised"
    UNWRITTEN_OUTPUT = "unwritten-output"
    WRITE_TO_INPUT = "write-to-input"
    DIVERGENCE = "divergence"
    INACTIVE_LANE = "inactive-lane"
    UNDEFINED = "undefined"
    THREADGROUP_LIMIT = "threadgroup-limit"
    STACK_OVERFLOW = "stack-overflow"
    TIMEOUT = "timeout"
    CRASH = "crash"


@dataclass(frozen=True)
class Place:
    """A line of the kernel.

    Attributes:
        part: `"source"`, or `"header"`.
        line: of that part, counted from 1.
        text: the line itself.
    """

    part: str
    line: int
    text: str

    def __str__(self) -> str:
        """As compilers write it."""
        return f"{self.part}:{self.line}"


@dataclass(frozen=True)
class Fault:
    """One of the things that a kernel was caught doing.

    Attributes:
        kind: what sort of thing.
        message: what happened, to which bytes, by which thread.
        place: where; None where no line of the kernel can be named.
        callers: the lines from which the function around it was called, the innermost first.
        other: of a race, the place of the other access.
        count: how often it was seen there.
    """

    kind: FaultKind
    message: str
    place: Place | None
    callers: tuple[Place, ...] = ()
    other: Place | None = None
    count: int = 1

    def __str__(self) -> str:
        """Some lines for people."""
        where = f" at {self.place}" if self.place else ""
        often = f" ({self.count} times)" if self.count > 1 else ""
        lines = [f"{self.kind}{where}{often}: {self.message}"]
        shown = [self.place, *self.callers, self.other]
        lines += [f"    {place}: {place.text.strip()}" for place in shown if place]
        return "\n".join(lines)


class KernelFaultError(RuntimeError):
    """A kernel did what it must not.

    Attributes:
        faults: all that was found, at least one.
    """

    def __init__(self, name: str, how: str, faults: Sequence[Fault]) -> None:
        """The faults of a kernel that was run in some way."""
        super().__init__("\n".join([f"kernel {name!r} ({how}):", *map(str, faults)]))
        self.faults = tuple(faults)

    @property
    def kinds(self) -> frozenset[FaultKind]:
        """The kinds of the faults."""
        return frozenset(fault.kind for fault in self.faults)
