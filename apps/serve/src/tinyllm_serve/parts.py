"""What an answer is made of."""

from dataclasses import dataclass, field
from secrets import token_hex


@dataclass(frozen=True)
class Reasoning:
    """A piece of the thinking before the answer."""

    text: str


@dataclass(frozen=True)
class Content:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class ToolCall:
    """A call of a function, complete.

    Attributes:
        name: of the function.
        arguments: a JSON object, as text.
        id: by which the client says what came of it.
    """

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{token_hex(12)}", compare=False)


Part = Reasoning | Content | ToolCall
