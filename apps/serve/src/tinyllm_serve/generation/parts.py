"""The parts of an answer, as its parser returns them."""

from dataclasses import dataclass, field
from secrets import token_hex


@dataclass(frozen=True)
class Reasoning:
    """A piece of the reasoning before the answer."""

    text: str


@dataclass(frozen=True)
class Content:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """The start of a function call. Its arguments follow, then its `CallEnd`.

    Attributes:
        name: the function's name.
        id: the id under which the client returns the result.
    """

    name: str
    id: str = field(default_factory=lambda: f"call_{token_hex(12)}", compare=False)


@dataclass(frozen=True)
class CallArguments:
    """A piece of the current call's arguments, which together are a JSON object as text."""

    text: str


@dataclass(frozen=True)
class CallEnd:
    """The end of the current call: its arguments are complete."""


Part = Reasoning | Content | CallStart | CallArguments | CallEnd


@dataclass
class ToolCall:
    """A function call in progress.

    Attributes:
        name: the function's name.
        id: the id under which the client returns the result.
        arguments: the arguments so far, as text.
        is_complete: True once the arguments are complete.
    """

    name: str
    id: str
    arguments: str = ""
    is_complete: bool = False
