"""Faults of a kernel, found while it runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """Kinds of faults, with their names in reports."""

    OUT_OF_BOUNDS = "out-of-bounds"
    RACE = "race"
    UNINITIALIZED = "uninitialized"
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
    """Line of a kernel.

    Attributes:
        part: `"source"` or `"header"`.
        line: line number within the part, counted from 1.
        text: the line itself.
    """

    part: str
    line: int
    text: str

    def __str__(self) -> str:
        """Return `part:line`, as compilers write it."""
        return f"{self.part}:{self.line}"


@dataclass(frozen=True)
class Fault:
    """Fault of a kernel at a line.

    Attributes:
        kind: kind of fault.
        message: description, with the bytes and the thread.
        place: line of the fault, or None if it is unknown.
        callers: lines that called the function of the fault, innermost first.
        other: line of the other access of a race, otherwise None.
        count: number of times that the fault occurred at this line.
    """

    kind: FaultKind
    message: str
    place: Place | None
    callers: tuple[Place, ...] = ()
    other: Place | None = None
    count: int = 1

    def __str__(self) -> str:
        """Return the kind, the message, and the lines of the kernel."""
        where = f" at {self.place}" if self.place else ""
        often = f" ({self.count} times)" if self.count > 1 else ""
        lines = [f"{self.kind}{where}{often}: {self.message}"]
        shown = [self.place, *self.callers, self.other]
        lines += [f"    {place}: {place.text.strip()}" for place in shown if place]
        return "\n".join(lines)


class KernelFaultError(RuntimeError):
    """A kernel ran with faults.

    Attributes:
        faults: the faults found: at least one, and at most 32. The last fault is always among them.
    """

    def __init__(self, name: str, settings: str, faults: Sequence[Fault]) -> None:
        """Make the error for a kernel and the settings of the run, such as `check-0`."""
        super().__init__("\n".join([f"kernel {name!r} ({settings}):", *map(str, faults)]))
        self.faults = tuple(faults)

    @property
    def kinds(self) -> frozenset[FaultKind]:
        """Kinds of the faults."""
        return frozenset(fault.kind for fault in self.faults)
