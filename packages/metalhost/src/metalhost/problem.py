"""What is wrong with a kernel's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        part: `"header"`, `"source"` or another name of a piece of the generated text.
        line: of that part, counted from 1.
        message: what is wrong with it.
        text: the line itself.
    """

    part: str
    line: int
    message: str
    text: str = ""

    def __str__(self) -> str:
        """One or two lines for people."""
        shown = f"\n    {self.text.strip()}" if self.text.strip() else ""
        return f"{self.part}:{self.line}: {self.message}{shown}"


class KernelTextError(ValueError):
    """The text of a kernel is wrong, or is none that can be run here.

    Attributes:
        problems: all that was found.
    """

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        """The problems of a kernel."""
        super().__init__("\n".join([f"kernel {name!r}:", *map(str, problems)]))
        self.problems = tuple(problems)
