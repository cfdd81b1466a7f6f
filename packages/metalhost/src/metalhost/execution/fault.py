"""Faults of a kernel, found while it runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """Kinds of faults, with their names in reports."""

    OUT_OF_BOUNDS = "out-of-bounds"
    """An access outside of an input, an output or a threadgroup variable."""
    RACE = "race"
    """Accesses of two threads to the same bytes, one of them a write, without a barrier between."""
    UNINITIALIZED = "uninitialized"
    """A read of memory that was never written."""
    UNWRITTEN_OUTPUT = "unwritten-output"
    """An output that is not completely written."""
    WRITE_TO_INPUT = "write-to-input"
    """A write to an input."""
    DIVERGENCE = "divergence"
    """Threads that wait at different barriers or simd operations."""
    INACTIVE_LANE = "inactive-lane"
    """A simd operation that includes lanes that have returned."""
    UNDEFINED = "undefined"
    """Undefined behavior, such as an integer overflow or a division by zero."""
    THREADGROUP_LIMIT = "threadgroup-limit"
    """Threadgroup variables that need more memory than a threadgroup has."""
    STACK_OVERFLOW = "stack-overflow"
    """Variables of a thread that need more memory than its stack has."""
    TIMEOUT = "timeout"
    """A kernel that does not end within the time limit."""
    CRASH = "crash"
    """Any other fault that ends the process of a kernel."""


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
