"""Runs a program over arrays, in a process of its own.

The launch is a file that is the program's standard input: a header, a record for each buffer, the
bytes of the buffers (native/runtime/launch.h is the other half). Outputs are written back into
it; what was found is on standard output.
"""

from __future__ import annotations

import os
import shlex
import signal
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metalhost.fault import FaultKind
from metalhost.settings import Settings

_HEADER = struct.Struct("<3I3IQ4I")
_RECORD = struct.Struct("<2Q2I64s")
_CHECKED, _ALLOW_DIVERGENCE = 1, 2
_OUTPUT, _INITIALISED = 1, 2
_GRACE = 10.0  # seconds after which a program that does not stop by itself is stopped


@dataclass(frozen=True)
class Buffer:
    """Memory of a launch.

    Attributes:
        name: for reports.
        size: in bytes.
        data: what it holds at the beginning; None if nothing in particular.
        is_output: whether the kernel may write it.
        misalignment: bytes after a multiple of 16 at which it begins.
    """

    name: str
    size: int
    data: bytes | None
    is_output: bool = False
    misalignment: int = 0

    def record(self, offset: int) -> bytes:
        """As the program reads it."""
        initialised = _INITIALISED if self.is_output and self.data is not None else 0
        flags = (_OUTPUT if self.is_output else 0) | initialised
        name = self.name.encode()[:63]
        return _RECORD.pack(offset, self.size, flags, self.misalignment, name)


@dataclass(frozen=True)
class Finding:
    """A report of the program, with addresses for places.

    Attributes:
        kind: what sort of fault.
        message: in which {other} stands for the other place.
        part: of the kernel's text, if known.
        line: of the part; 0 if not known.
        addresses: where it happened, callers last.
        other: where the other access of a race happened.
        count: how often.
    """

    kind: FaultKind
    message: str
    part: str = ""
    line: int = 0
    addresses: tuple[int, ...] = ()
    other: tuple[int, ...] = ()
    count: int = 1

    @classmethod
    def parse(cls, record: str) -> Finding | None:
        """From a line of the program's output; None if the kernel has damaged it."""
        fields = record.split("\t", 6)
        try:
            kind, part, line, addresses, other, count, message = fields
            chains = _hex(addresses), _hex(other)
            return cls(FaultKind(kind), message, part.strip("<>"), int(line), *chains, int(count))
        except ValueError:
            return None


def _hex(addresses: str) -> tuple[int, ...]:
    return tuple(int(address, 16) for address in addresses.split(",") if address)


@dataclass(frozen=True)
class Outcome:
    """What came of a launch.

    Attributes:
        outputs: the bytes of the outputs, in order; none if the kernel did not come to its end.
        findings: what it was caught doing.
    """

    outputs: tuple[bytes, ...]
    findings: tuple[Finding, ...]


def launch(
    program: Path,
    grid: Sequence[int],
    threadgroup: Sequence[int],
    buffers: Sequence[Buffer],
    settings: Settings,
) -> Outcome:
    """Run a kernel over a grid of so many threads."""
    flags = _CHECKED * (settings.mode == "check") | _ALLOW_DIVERGENCE * settings.allow_divergence
    header = _HEADER.pack(
        *grid,
        *threadgroup,
        settings.seed,
        flags,
        max(1, round(settings.timeout * 1000)),
        settings.threadgroup_memory,
        len(buffers),
    )
    offsets, end = [], _HEADER.size + _RECORD.size * len(buffers)
    for buffer in buffers:
        offsets.append(end)
        end += buffer.size
    places = list(zip(buffers, offsets, strict=True))
    with tempfile.TemporaryFile(prefix="metalhost-") as file:
        file.write(header + b"".join(buffer.record(offset) for buffer, offset in places))
        for buffer, offset in places:
            if buffer.data is not None:
                file.seek(offset)
                file.write(buffer.data)
        file.truncate(end)
        file.flush()
        done, findings = _run(program, file.fileno(), settings.timeout + _GRACE)
        outputs = []
        if done:
            for buffer, offset in places:
                if buffer.is_output:
                    file.seek(offset)
                    outputs.append(file.read(buffer.size))
    return Outcome(tuple(outputs), tuple(findings))


def _run(program: Path, file: int, limit: float) -> tuple[bool, list[Finding]]:
    """Whether the program came to its end, and what it found."""
    try:
        ran = subprocess.run(
            emulated(program), stdin=file, capture_output=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return False, [Finding(FaultKind.TIMEOUT, f"killed after {limit:g} s")]
    records = ran.stdout.decode(errors="replace").splitlines()
    done = records[-1:] == ["done"]
    parsed = map(Finding.parse, records[:-1] if done else records)
    findings = [finding for finding in parsed if finding is not None]
    if not done and not findings:
        findings.append(Finding(FaultKind.CRASH, _ending(ran.returncode, ran.stderr)))
    return done, findings


def emulated(program: Path) -> list[str]:
    """A command; METALHOST_EMULATOR names what runs another machine's program."""
    return [*shlex.split(os.environ.get("METALHOST_EMULATOR", "")), str(program)]


def _ending(status: int, said: bytes) -> str:
    """How a program ended that reported nothing."""
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended with status {status}: {said.decode(errors='replace').strip()}"
