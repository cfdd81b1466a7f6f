"""Planted faults, and the tables that list them."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cases import CASES
from metalhost import SWEEP, KernelFaultError, using
from planting import planted

REPORTED, WRONG, MISSED = "reported", "wrong numbers", "not found"
_TABLES = Path(__file__).parent / "mutations"


@dataclass(frozen=True)
class Mutation:
    """One change of a kernel's text.

    Attributes:
        kernel: the case that runs the kernel, one of `cases.CASES`.
        kind: kind of mistake.
        before: text of the kernel, in its `.metal` files or its body, that occurs once.
        after: replacement of that text.
    """

    kernel: str
    kind: str
    before: str
    after: str

    def outcome(self) -> str:
        """Plant the fault. Return `REPORTED` by metalhost, `WRONG` numbers, or `MISSED`."""
        with planted(self.before, self.after):
            for settings in SWEEP:
                with using(settings):
                    try:
                        CASES[self.kernel]()
                    except KernelFaultError:
                        return REPORTED
                    except AssertionError:
                        return WRONG
        return MISSED

    def __str__(self) -> str:
        """Return one line for people."""
        before, after = " ".join(self.before.split()), " ".join(self.after.split())
        return f"{self.kernel}, {self.kind}: {before} -> {after or 'nothing'}"


def mutations() -> Iterator[Mutation]:
    """Yield the faults of all tables. Each is a list of three texts under its kernel's name."""
    for table in sorted(_TABLES.glob("*.toml")):
        for kernel, rows in tomllib.loads(table.read_text(encoding="utf-8")).items():
            for kind, before, after in rows:
                yield Mutation(kernel, kind, before, after)
