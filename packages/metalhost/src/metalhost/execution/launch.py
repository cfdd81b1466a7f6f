"""Launch of a program over arrays, in a process of its own.

The standard input of the program is a file: a header, a record for each buffer, and the bytes of
the buffers. native/runtime/host/launch.h declares the same layout. The program writes the outputs
back to this file, and its findings to standard output.
"""

import os
import shlex
import signal
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metalhost.execution.fault import FaultKind
from metalhost.settings import Settings

_HEADER = struct.Struct("<3I3IQ4I")
_RECORD = struct.Struct("<2Q2I64s")
_CHECKED, _ALLOW_DIVERGENCE = 1, 2
_OUTPUT, _INITIALIZED = 1, 2
_GRACE = 10.0  # seconds after the time limit until the process is killed


@dataclass(frozen=True)
class Buffer:
    """Buffer of a launch.

    Attributes:
        name: name in reports.
        size: size in bytes.
        data: initial contents, or None for uninitialized memory.
        is_output: True if the kernel may write the buffer.
        misalignment: offset of the address from a multiple of 16, in bytes.
    """

    name: str
    size: int
    data: bytes | None
    is_output: bool = False
    misalignment: int = 0

    def record(self, offset: int) -> bytes:
        """Return the record that the program reads. The bytes of the buffer are at `offset`."""
        initialized = _INITIALIZED if self.is_output and self.data is not None else 0
        flags = (_OUTPUT if self.is_output else 0) | initialized
        name = self.name.encode()[:63]  # BufferRecord.name has 64 bytes and ends with a null byte
        return _RECORD.pack(offset, self.size, flags, self.misalignment, name)


@dataclass(frozen=True)
class Finding:
    """Finding of the program, with addresses that are not yet looked up.

    Attributes:
        kind: kind of fault.
        message: description. `{other}` stands for the line of the other access.
        part: part of the kernel's text, or an empty string if it is unknown.
        line: line number within the part, or 0 if it is unknown.
        addresses: addresses of the fault, innermost function first.
        other: addresses of the other access of a race.
        count: number of occurrences.
    """

    kind: FaultKind
    message: str
    part: str = ""
    line: int = 0
    addresses: tuple[int, ...] = ()
    other: tuple[int, ...] = ()
    count: int = 1

    @classmethod
    def parse(cls, record: str) -> "Finding | None":
        """Parse a line of the program's output. Return None if the kernel has corrupted it."""
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
    """Result of a launch.

    Attributes:
        outputs: bytes of each output, in order. Empty if the kernel did not finish.
        findings: faults of the kernel.
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
    """Run a program over a grid.

    Args:
        program: path of the program.
        grid: number of threads along each axis.
        threadgroup: threads of a threadgroup along each axis.
        buffers: buffers of the kernel, in the order of its parameters.
        settings: settings of the run.
    """
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
    located = list(zip(buffers, offsets, strict=True))
    with tempfile.TemporaryFile(prefix="metalhost-") as file:
        file.write(header + b"".join(buffer.record(offset) for buffer, offset in located))
        for buffer, offset in located:
            if buffer.data is not None:
                file.seek(offset)
                file.write(buffer.data)
        file.truncate(end)
        file.flush()
        finished, findings = _run(program, file.fileno(), settings.timeout + _GRACE)
        outputs = []
        if finished:
            for buffer, offset in located:
                if buffer.is_output:
                    file.seek(offset)
                    outputs.append(file.read(buffer.size))
    return Outcome(tuple(outputs), tuple(findings))


def _run(program: Path, file: int, limit: float) -> tuple[bool, list[Finding]]:
    """Run the process. Return True if the kernel finished, and the findings."""
    try:
        result = subprocess.run(
            command(program), stdin=file, capture_output=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return False, [Finding(FaultKind.TIMEOUT, f"killed after {limit:g} s")]
    records = result.stdout.decode(errors="replace").splitlines()
    finished = records[-1:] == ["done"]
    parsed = map(Finding.parse, records[:-1] if finished else records)
    findings = [finding for finding in parsed if finding is not None]
    if not finished and not findings:
        findings.append(Finding(FaultKind.CRASH, _exit_message(result.returncode, result.stderr)))
    return finished, findings


def command(program: Path) -> list[str]:
    """Return the command that runs a program, under METALHOST_EMULATOR if it is set."""
    return [*shlex.split(os.environ.get("METALHOST_EMULATOR", "")), str(program)]


def _exit_message(status: int, stderr: bytes) -> str:
    """Return the message for a process that ended without a finding."""
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended with status {status}: {stderr.decode(errors='replace').strip()}"
