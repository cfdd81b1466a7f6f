"""From what a program found, at addresses, to faults at lines of the kernel.

Threads that came to one place by different calls have diverged, unless a compiler has made several
calls of one: then the lines of both chains are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metalhost import symbols
from metalhost.fault import Fault, FaultKind, Place
from metalhost.kernel_text import KernelText
from metalhost.launch import Finding


def faults(findings: Sequence[Finding], program: Path, text: KernelText) -> list[Fault]:
    """The findings, with their places looked up; of those that are none by their lines, none."""
    addresses = [a for finding in findings for a in (*finding.addresses, *finding.other)]
    known = symbols.lines(program, addresses)

    def places(of: tuple[int, ...]) -> list[Place]:
        lines = [line for address in of for line in known.get(address, [])]
        return [_place(*line, text) for line in lines]

    found = []
    for finding in findings:
        chain, other = places(finding.addresses), places(finding.other)
        if finding.kind == FaultKind.DIVERGENCE and finding.other:
            apart = _fork(chain, other)
            if apart is None:
                continue
            chain, other = chain[apart:], other[apart:]
        found.append(_fault(finding, chain, other, text))
    return found


def _fork(chain: Sequence[Place], other: Sequence[Place]) -> int | None:
    """The first place at which two chains of calls differ."""
    pairs = enumerate(zip(chain, other, strict=False))
    return next((at for at, (one, another) in pairs if one != another), None)


def _fault(finding: Finding, chain: list[Place], other: list[Place], text: KernelText) -> Fault:
    if finding.line and finding.part in ("source", "header"):
        chain = [_place(finding.part, finding.line, text)]
    elsewhere = str(other[0]) if other else "a place that is not known"
    return Fault(
        kind=finding.kind,
        message=finding.message.replace("{other}", elsewhere)
        .replace("<source>", "source")
        .replace("<header>", "header"),
        place=chain[0] if chain else None,
        callers=tuple(chain[1:]),
        other=other[0] if other else None,
        count=finding.count,
    )


def _place(part: str, line: int, text: KernelText) -> Place:
    return Place(part, line, text.line(part, line))
