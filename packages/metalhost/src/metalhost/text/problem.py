"""Problems in the text of a kernel, found before it runs."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """A problem at a line of a kernel's text.

    Attributes:
        part: `"header"`, `"source"` or the name of another part of the generated text.
        line: line number within the part, counted from 1.
        message: description of the problem.
        text: the line itself.
    """

    part: str
    line: int
    message: str
    text: str = ""

    def __str__(self) -> str:
        """Return the location, the message and the line."""
        shown = f"\n    {self.text.strip()}" if self.text.strip() else ""
        return f"{self.part}:{self.line}: {self.message}{shown}"


class KernelTextError(ValueError):
    """The text of a kernel is invalid, or uses a feature that metalhost does not support.

    Attributes:
        problems: all problems found.
    """

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        """Make the error for the problems of the kernel `name`."""
        super().__init__("\n".join([f"kernel {name!r}:", *map(str, problems)]))
        self.problems = tuple(problems)
