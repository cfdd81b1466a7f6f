"""Complete text of a kernel: header, generated signature and body."""

from dataclasses import dataclass

from metalhost.text.problem import Problem
from metalhost.text.signature import Signature


@dataclass(frozen=True)
class KernelText:
    """Text of a kernel.

    Attributes:
        name: name that the author gave the kernel.
        header: text before the function.
        source: body of the function.
        prologue: text that MLX generates between the header and the body.
        epilogue: text that MLX generates after the body.
        instance: name of the function with its template arguments.
        arguments: C++ expressions that the host's entry point passes to the function.
    """

    name: str
    header: str
    source: str
    prologue: str
    epilogue: str
    instance: str
    arguments: tuple[str, ...]

    @classmethod
    def assemble(cls, name: str, header: str, source: str, signature: Signature) -> "KernelText":
        """Put the generated signature around the body."""
        arguments = [
            f"{'*' * parameter.is_reference}static_cast<{parameter.pointee}*>(buffers[{number}])"
            for number, parameter in enumerate(signature.parameters)
        ]
        arguments += [attribute.value for attribute in signature.attributes]
        return cls(
            name=name,
            header=header,
            source=source,
            prologue=signature.prologue,
            epilogue=signature.epilogue,
            instance=signature.instance,
            arguments=tuple(arguments),
        )

    def metal(self) -> str:
        """Return the text that MLX passes to the Metal compiler."""
        return self.header + self.prologue + self.source + self.epilogue

    def line(self, part: str, number: int) -> str:
        """Return a line of a part: `"header"`, `"source"` or `"signature"` (the prologue)."""
        parts = {"header": self.header, "source": self.source, "signature": self.prologue}
        lines = parts.get(part, "").split("\n")
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def located(self, problem: Problem) -> Problem:
        """Return the problem with the text of its line."""
        text = self.line(problem.part, problem.line)
        return Problem(problem.part, problem.line, problem.message, text)
