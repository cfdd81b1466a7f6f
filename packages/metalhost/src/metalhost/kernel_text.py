"""The text of a kernel, and what MLX writes around it."""

from __future__ import annotations

from dataclasses import dataclass

from metalhost.problem import Problem
from metalhost.signature import Signature


@dataclass(frozen=True)
class KernelText:
    """What a kernel consists of.

    Attributes:
        name: as its author calls it.
        header: what stands before the function.
        source: its body.
        before: what MLX writes between the two.
        after: what MLX writes behind the body.
        instance: the kernel's name, with template arguments.
        arguments: what the host passes to it, as expressions of the entry point's parameters.
    """

    name: str
    header: str
    source: str
    before: str
    after: str
    instance: str
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, name: str, header: str, source: str, around: Signature) -> KernelText:
        """Put a signature around a body."""
        arguments = [
            f"{'*' * parameter.is_reference}static_cast<{parameter.pointee}*>(buffers[{number}])"
            for number, parameter in enumerate(around.parameters)
        ]
        arguments += [attribute.value for attribute in around.attributes]
        return cls(
            name, header, source, around.before, around.after, around.instance, tuple(arguments)
        )

    def metal(self) -> str:
        """The text that MLX would hand to the Metal compiler."""
        return self.header + self.before + self.source + self.after

    def line(self, part: str, number: int) -> str:
        """A line of one of the parts, by the name that the compiler knows it under."""
        parts = {"header": self.header, "source": self.source, "signature": self.before}
        lines = parts.get(part, "").split("\n")
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def located(self, problem: Problem) -> Problem:
        """The same problem, with the line that it is in."""
        text = self.line(problem.part, problem.line)
        return Problem(problem.part, problem.line, problem.message, text)
