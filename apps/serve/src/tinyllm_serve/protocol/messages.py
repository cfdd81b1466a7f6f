"""The messages of a conversation, in OpenAI's form."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import Field, field_validator

from tinyllm_serve.http.json_structure import JsonBounds
from tinyllm_serve.protocol.base import MAX_ITEMS, MAX_TOOLS, ListOf, SmallName, Strict

ARGUMENT_BOUNDS = JsonBounds(values=1 << 16, containers=1 << 14)
"""The largest arguments of a call. Chat templates render them as JSON."""


class Text(Strict):
    """A part of a message, in the form of any endpoint. Text is the only kind of part."""

    text: str


class TextPart(Text):
    """A part of a message, in the form of chat completions."""

    type: Literal["text"]


MessageContent = str | Annotated[ListOf[TextPart], Field(min_length=1, max_length=MAX_ITEMS)]


class CalledFunction(Strict):
    """The name and the arguments of a function call."""

    name: str = Field(max_length=256)
    arguments: str = Field(description="A JSON object, as text.")


class PastToolCall(Strict):
    """A call that the model made earlier in the conversation."""

    id: SmallName
    type: Literal["function"] = "function"
    function: CalledFunction

    @field_validator("function")
    @classmethod
    def _check_arguments(cls, function: CalledFunction) -> CalledFunction:
        ARGUMENT_BOUNDS.check(function.arguments.encode(errors="replace"))
        return function

    @property
    def template_form(self) -> dict[str, object]:
        """The call for chat templates, which expect arguments as an object."""
        arguments: object = self.function.arguments
        with suppress(ValueError, RecursionError):  # arguments that are no JSON stay text
            arguments = json.loads(self.function.arguments)
        function = {"name": self.function.name, "arguments": arguments}
        return {**self.model_dump(), "function": function}


class _Turn(Strict):
    """A message of any role. Each role narrows the content."""

    content: MessageContent | None

    @property
    def template_form(self) -> dict[str, object]:
        """The message for chat templates, with its content as one text."""
        return {**self.model_dump(), "content": text_of(self.content or "")}


class SystemMessage(_Turn):
    """Instructions for the whole conversation. Newer clients call the role developer."""

    role: Literal["system", "developer"]
    content: MessageContent
    name: SmallName | None = None

    @property
    def template_form(self) -> dict[str, object]:
        """The message for chat templates, which do not know the role developer."""
        return {**super().template_form, "role": "system"}


class UserMessage(_Turn):
    """A message of the user."""

    role: Literal["user"]
    content: MessageContent
    name: SmallName | None = None


class AssistantMessage(_Turn):
    """A message of the model: text, reasoning and calls."""

    role: Literal["assistant"]
    content: MessageContent | None = None
    reasoning_content: str | None = None
    tool_calls: ListOf[PastToolCall] | None = Field(default=None, max_length=MAX_TOOLS)
    name: SmallName | None = None

    @property
    def template_form(self) -> dict[str, object]:
        """The message for chat templates."""
        calls = [call.template_form for call in self.tool_calls or []] or None
        return {**super().template_form, "tool_calls": calls}


class ToolMessage(_Turn):
    """The result of a function call."""

    role: Literal["tool"]
    content: MessageContent
    tool_call_id: SmallName


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


def text_of(content: str | Sequence[Text]) -> str:
    """Return the content of a message as one text."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
