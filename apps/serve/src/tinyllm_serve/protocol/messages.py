"""The messages of a conversation, in OpenAI's form."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from tinyllm_serve.http.json_structure import JsonBounds
from tinyllm_serve.protocol.base import (
    MAX_ITEMS,
    MAX_TOOLS,
    CacheControl,
    Empty,
    ListOf,
    SmallName,
    Strict,
    expect,
)

Parsed: Any = Field(
    default=None, exclude=True, description="Ignored: SDKs add it to answers that they parse."
)
"""An object of the SDK's side, beside the text that it was parsed from."""

ARGUMENT_BOUNDS = JsonBounds(values=1 << 16, containers=1 << 14)
"""The largest arguments of a call. Chat templates render them as JSON."""


TEXT_ALONE = "the model reads text alone: leave out images, audio and files"


_TEXT_HINTS = {
    "refusal": "expected text: write the refusal as a text",
    **dict.fromkeys(
        ("input_text", "output_text"),
        "expected text, as in chat completions: /v1/responses has input_text and output_text",
    ),
}


class Text(Strict):
    """A part of a message, in the form of any endpoint. Text is the only kind of part."""

    text: str


class TextPart(Text):
    """A part of a message, in the form of chat completions."""

    type: Annotated[Literal["text"], expect(f"expected text, {TEXT_ALONE}", _TEXT_HINTS)]
    cache_control: CacheControl | None = Field(default=None, exclude=True)


def placeholder(kind: str) -> str:
    """Return the text in place of a part of a result that the model cannot read."""
    return f"[{kind} left out: the model reads text alone]"


class LeftOutImage(Strict):
    """An image in the result of a function call.

    Agents offer functions that return images to every model. To refuse the result would end the
    conversation, because it is sent again with each later turn.
    """

    @property
    def text(self) -> str:
        """The text in place of the image."""
        return placeholder("image")


class ImagePart(LeftOutImage):
    """An image, in the form of chat completions."""

    type: Literal["image_url"]
    image_url: dict[str, str] = Field(exclude=True)


MessageContent = str | Annotated[ListOf[TextPart], Field(min_length=1, max_length=MAX_ITEMS)]

ResultContent = (
    str | Annotated[ListOf[TextPart | ImagePart], Field(min_length=1, max_length=MAX_ITEMS)]
)


class CalledFunction(Strict):
    """The name and the arguments of a function call."""

    name: SmallName
    arguments: str = Field(description="A JSON object, as text.")


def _check_arguments(arguments: str) -> str:
    ARGUMENT_BOUNDS.check(arguments.encode(errors="replace"))
    return arguments


PastArguments = Annotated[str, AfterValidator(_check_arguments)]
"""The arguments of an earlier function call, which may be parsed."""


class PastFunction(CalledFunction):
    """The name and the arguments of an earlier function call."""

    arguments: PastArguments = Field(description="A JSON object, as text.")
    parsed_arguments: object = Parsed


class PastToolCall(Strict):
    """A call that the model made earlier in the conversation."""

    id: SmallName
    type: Literal["function"] = "function"
    function: PastFunction
    index: int | None = Field(
        default=None,
        ge=0,
        lt=MAX_TOOLS,
        exclude=True,
        description="Ignored: the order of the calls counts.",
    )

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

    content: MessageContent | ResultContent | None
    type: Literal["text"] | None = Field(
        default=None, exclude=True, description="Ignored: lm-evaluation-harness sends it."
    )

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

    unsupported: ClassVar[Mapping[str, str]] = {
        "refusal": "unknown here: write its text as content",
        "function_call": "unknown here: use tool_calls",
        "audio": f"unknown here: {TEXT_ALONE}",
    }

    role: Literal["assistant"]
    content: MessageContent | None = None
    reasoning_content: str | None = None
    tool_calls: ListOf[PastToolCall] | None = Field(default=None, max_length=MAX_TOOLS)
    name: SmallName | None = None
    reasoning: str | None = Field(
        default=None, exclude=True, description="The name of reasoning_content in newer vLLM."
    )
    parsed: object = Parsed
    annotations: Empty | None = Field(default=None, exclude=True)
    reasoning_details: Empty | None = Field(default=None, exclude=True)
    thinking_blocks: Empty | None = Field(default=None, exclude=True)

    @model_validator(mode="after")
    def _check_reasoning(self) -> "AssistantMessage":
        if self.reasoning is None:
            return self
        if self.reasoning_content not in (None, self.reasoning):
            raise ValueError("reasoning: expected the text of reasoning_content: give one of them")
        self.reasoning_content = self.reasoning
        return self

    @property
    def template_form(self) -> dict[str, object]:
        """The message for chat templates."""
        calls = [call.template_form for call in self.tool_calls or []] or None
        return {**super().template_form, "tool_calls": calls}


class ToolMessage(_Turn):
    """The result of a function call."""

    role: Literal["tool"]
    content: ResultContent
    tool_call_id: SmallName
    name: SmallName | None = None


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


def text_of(content: str | Sequence[Text | LeftOutImage]) -> str:
    """Return the content of a message as one text."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def count_images(contents: Iterable[str | Sequence[Text | LeftOutImage]]) -> int:
    """Return the number of images that are left out of results."""
    return sum(
        isinstance(part, LeftOutImage)
        for content in contents
        if not isinstance(content, str)
        for part in content
    )
