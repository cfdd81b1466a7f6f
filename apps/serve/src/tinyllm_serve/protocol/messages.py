"""The messages of a conversation, in OpenAI's form."""

import json
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import Field

from tinyllm_serve.protocol.base import Strict


class TextPart(Strict):
    """A part of a message. Text is the only kind of part."""

    type: Literal["text"]
    text: str


MessageContent = str | Annotated[list[TextPart], Field(min_length=1)]


class CalledFunction(Strict):
    """The name and the arguments of a function call."""

    name: str = Field(max_length=256)
    arguments: str = Field(description="A JSON object, as text.")


class PastToolCall(Strict):
    """A call that the model made earlier in the conversation."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    @property
    def template_form(self) -> dict[str, object]:
        """The call for chat templates, which expect arguments as an object."""
        arguments: object = self.function.arguments
        with suppress(ValueError, RecursionError):  # arguments that are no JSON stay text
            arguments = json.loads(self.function.arguments)
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}


class SystemMessage(Strict):
    """Instructions for the whole conversation. Newer clients call the role developer."""

    role: Literal["system", "developer"]
    content: MessageContent
    name: str | None = None

    @property
    def template_form(self) -> dict[str, object]:
        """The message for chat templates."""
        return {"role": "system", "content": text_of(self.content), "name": self.name}


class UserMessage(Strict):
    """A message of the user."""

    role: Literal["user"]
    content: MessageContent
    name: str | None = None

    @property
    def template_form(self) -> dict[str, object]:
        """The message for chat templates."""
        return {"role": self.role, "content": text_of(self.content), "name": self.name}


class AssistantMessage(Strict):
    """A message of the model: text, reasoning and calls."""

    role: Literal["assistant"]
    content: MessageContent | None = None
    reasoning_content: str | None = None
    tool_calls: list[PastToolCall] | None = None
    name: str | None = None

    @property
    def template_form(self) -> dict[str, object]:
        """The message for chat templates."""
        return {
            "role": self.role,
            "content": text_of(self.content or ""),
            "reasoning_content": self.reasoning_content,
            "tool_calls": [call.template_form for call in self.tool_calls or []] or None,
            "name": self.name,
        }


class ToolMessage(Strict):
    """The result of a function call."""

    role: Literal["tool"]
    content: MessageContent
    tool_call_id: str

    @property
    def template_form(self) -> dict[str, object]:
        """The message for chat templates."""
        content = text_of(self.content)
        return {"role": self.role, "content": content, "tool_call_id": self.tool_call_id}


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


def text_of(content: MessageContent) -> str:
    """Return the content of a message as one text."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
