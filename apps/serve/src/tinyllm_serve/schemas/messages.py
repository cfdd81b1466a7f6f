"""The messages of a conversation, in OpenAI's form."""

import json
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import Field

from tinyllm_serve.schemas.strict import Strict


class TextPart(Strict):
    """A piece of text; there are no others."""

    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(min_length=1)]


class CalledFunction(Strict):
    """A function, and what it was called with."""

    name: str = Field(max_length=256)
    arguments: str = Field(description="A JSON object, as text.")


class PastToolCall(Strict):
    """A call that the model made earlier in the conversation."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    @property
    def template_form(self) -> dict[str, object]:
        """As chat templates expect it: with the arguments themselves, where they are JSON."""
        arguments: object = self.function.arguments
        with suppress(ValueError, RecursionError):  # what a model garbled, it sees as it was
            arguments = json.loads(self.function.arguments)
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}


class SystemMessage(Strict):
    """What holds for the whole conversation; newer clients call it developer."""

    role: Literal["system", "developer"]
    content: Content
    name: str | None = None

    @property
    def template_form(self) -> dict[str, object]:
        """As chat templates expect it."""
        return {"role": "system", "content": text_of(self.content), "name": self.name}


class UserMessage(Strict):
    """What the user said."""

    role: Literal["user"]
    content: Content
    name: str | None = None

    @property
    def template_form(self) -> dict[str, object]:
        """As chat templates expect it."""
        return {"role": self.role, "content": text_of(self.content), "name": self.name}


class AssistantMessage(Strict):
    """What the model said, thought and called."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: str | None = None
    tool_calls: list[PastToolCall] | None = None
    name: str | None = None

    @property
    def template_form(self) -> dict[str, object]:
        """As chat templates expect it."""
        return {
            "role": self.role,
            "content": text_of(self.content or ""),
            "reasoning_content": self.reasoning_content,
            "tool_calls": [call.template_form for call in self.tool_calls or []] or None,
            "name": self.name,
        }


class ToolMessage(Strict):
    """What a function gave back."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str

    @property
    def template_form(self) -> dict[str, object]:
        """As chat templates expect it."""
        content = text_of(self.content)
        return {"role": self.role, "content": content, "tool_call_id": self.tool_call_id}


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


def text_of(content: Content) -> str:
    """A message's content as one text."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
