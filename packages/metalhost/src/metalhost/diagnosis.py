"""From what a program found, at addresses, to faults at lines of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metalhost import symbols
from metalhost.fault import Fault, Place
from metalhost.kernel_text import KernelText
from metalhost.launch import Finding


def faults(findings: Sequence[Finding], program: Path, text: KernelText) -> list[Fault]:
    """The findings, with their places looked up."""
    addresses = [a for finding in findings for a in (*finding.addresses, *finding.other)]
    known = symbols.lines(program, addresses)

    def places(of: tuple[int, ...]) -> list[Place]:
        lines = [line for address in of for line in known.get(address, [])]
        return [_place(*line, text) for line in lines]

    return [
        _fault(finding, places(finding.addresses), places(finding.other), text)
        for finding in findings
    ]


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
