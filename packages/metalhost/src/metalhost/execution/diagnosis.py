"""Conversion of findings, which have addresses, to faults at lines of the kernel.

Threads that reach the same barrier by different calls have diverged. If the compiler has duplicated
a call, only the addresses of the two call chains differ and their lines do not. Such a finding is
dropped.
"""

from collections.abc import Sequence
from pathlib import Path

from metalhost.execution import symbols
from metalhost.execution.fault import Fault, FaultKind, Place
from metalhost.execution.launch import Finding
from metalhost.text.kernel_text import KernelText


def diagnose(findings: Sequence[Finding], program: Path, text: KernelText) -> list[Fault]:
    """Return the faults for the findings of a program, with the lines looked up."""
    addresses = [a for finding in findings for a in (*finding.addresses, *finding.other)]
    known = symbols.lines(program, addresses)

    def places(chain: tuple[int, ...]) -> list[Place]:
        lines = [line for address in chain for line in known.get(address, [])]
        return [_place(*line, text) for line in lines]

    faults = []
    for finding in findings:
        chain, other = places(finding.addresses), places(finding.other)
        if finding.kind == FaultKind.DIVERGENCE and finding.other:
            fork = _fork(chain, other)
            if fork is None:
                continue
            chain, other = chain[fork:], other[fork:]
        faults.append(_fault(finding, chain, other, text))
    return faults


def _fork(chain: Sequence[Place], other: Sequence[Place]) -> int | None:
    """Return the first index at which two call chains differ, or None."""
    pairs = enumerate(zip(chain, other, strict=False))
    return next((at for at, (one, another) in pairs if one != another), None)


def _fault(finding: Finding, chain: list[Place], other: list[Place], text: KernelText) -> Fault:
    if finding.line and finding.part in ("source", "header"):
        chain = [_place(finding.part, finding.line, text)]
    other_place = str(other[0]) if other else "an unknown line"
    return Fault(
        kind=finding.kind,
        message=finding.message.replace("{other}", other_place)
        .replace("<source>", "source")
        .replace("<header>", "header"),
        place=chain[0] if chain else None,
        callers=tuple(chain[1:]),
        other=other[0] if other else None,
        count=finding.count,
    )


def _place(part: str, line: int, text: KernelText) -> Place:
    return Place(part, line, text.line(part, line))
