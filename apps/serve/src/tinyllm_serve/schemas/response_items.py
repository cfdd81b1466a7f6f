"""What a conversation consists of in POST /v1/responses."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from tinyllm_serve.schemas.strict import Strict

Status = Literal["in_progress", "completed", "incomplete"]


class TextContent(Strict):
    """A piece of text; what the server sends with its own is taken back, and not looked at."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[object] | None = None
    logprobs: list[object] | None = None


class MessageItem(Strict):
    """Something said."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[TextContent], Field(min_length=1)]
    id: str | None = None
    status: Status | None = None

    @property
    def text(self) -> str:
        """What was said."""
        return _text(self.content)


class ReasoningText(Strict):
    """A piece of thinking."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Strict):
    """What the model thought before it spoke."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None
    summary: list[object] = Field(default=[], max_length=0)
    id: str | None = None
    status: Status | None = None

    @property
    def text(self) -> str:
        """The thinking."""
        return "".join(part.text for part in self.content or [])


class CallItem(Strict):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None


class CallOutputItem(Strict):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | Annotated[list[TextContent], Field(min_length=1)]
    id: str | None = None
    status: Status | None = None

    @property
    def text(self) -> str:
        """What came of it."""
        return _text(self.output)


def _text(content: str | list[TextContent]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _kind(item: object) -> str:
    """The type of an item; a message may leave it out."""
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return kind if isinstance(kind, str) else "message"


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")],
    Discriminator(_kind),
]
