"""Requests and responses of POST /v1/messages: Anthropic's API."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from tinyllm_serve.protocol.base import (
    MAX_ITEMS,
    MAX_NAME,
    MAX_TOOLS,
    JsonSchema,
    ListOf,
    SmallName,
    Strict,
)
from tinyllm_serve.protocol.messages import TEXT_ALONE
from tinyllm_serve.protocol.sampling import MAX_STOPS, Stop

BILLING_HEADER = "x-anthropic-billing-header"
"""The prefix of a system block of Claude Code, whose text differs in each request. The block is
left out, because two prompts would share no prefix otherwise."""


class Open(Strict):
    """An object whose unknown fields are left out, because clients add fields with each release.

    The log line of the request names the fields that were left out; see `unknown_fields`.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": True})

    cache_control: object = Field(
        default=None, exclude=True, description="No effect: all prefixes are cached."
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: object) -> object:
        """Keep the names of unknown fields, without their values, which may be large."""
        if not isinstance(body, dict):
            return body
        known = cls.model_fields
        return {
            name: value if name in known else None
            for name, value in body.items()
            if value is not None
        }


def unknown_fields(value: object, path: str = "") -> Iterator[str]:
    """Yield the paths of all fields that were left out, without the indices of lists.

    A name that is no identifier is `*`, because it may be a text of the user.
    """
    if isinstance(value, list):
        for item in value:
            yield from unknown_fields(item, path)
    elif isinstance(value, Open):
        for name in value.model_extra or ():
            yield f"{path}{name[:MAX_NAME] if name.isidentifier() else '*'}"
        for name, field in vars(value).items():
            if isinstance(field, Open | list):
                yield from unknown_fields(field, f"{path}{name}.")


class TextBlock(Open):
    """A text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(Open):
    """The model's reasoning in an earlier answer."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = Field(default=None, description="Not used: nothing is signed here.")


class RedactedThinkingBlock(Open):
    """Encrypted reasoning of another server. It is left out."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(Open):
    """A tool call of the model."""

    type: Literal["tool_use"]
    id: SmallName
    name: SmallName
    input: dict[str, object]


class Other(BaseModel):
    """An object that the model cannot use. Only its type is read.

    It is an image or a file in a tool's result, for which a short text stands in the prompt, or a
    tool that Anthropic runs or defines, such as `web_search_20250305`.
    """

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    type: SmallName


def _type(value: object) -> object:
    """Return the type of an object."""
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


ResultPart = Annotated[
    Annotated[TextBlock, Tag("text")] | Annotated[Other, Tag("other")],
    Discriminator(lambda part: "text" if _type(part) == "text" else "other"),
]


class ToolResultBlock(Open):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: SmallName
    content: str | Annotated[ListOf[ResultPart], Field(max_length=MAX_ITEMS)] = ""
    is_error: bool = False


Block = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[RedactedThinkingBlock, Tag("redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")],
    Discriminator(
        lambda block: str(_type(block)),
        custom_error_type="block_type",
        custom_error_message="expected a block of the type text, thinking, redacted_thinking, "
        f"tool_use or tool_result, {TEXT_ALONE}",
    ),
]

_BLOCKS: dict[str, tuple[type[Open], ...]] = {
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock),
    "system": (TextBlock,),
}
"""The blocks that a message of each role may have."""


class Turn(Open):
    """A message."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[ListOf[Block], Field(max_length=MAX_ITEMS)]

    @property
    def blocks(self) -> list[Block]:
        """The content as blocks."""
        if isinstance(self.content, str):
            return [TextBlock(type="text", text=self.content)]
        return self.content

    @model_validator(mode="after")
    def _check_blocks(self) -> "Turn":
        for block in () if isinstance(self.content, str) else self.content:
            if not isinstance(block, _BLOCKS[self.role]):
                raise ValueError(
                    f"content: expected no {block.type} in a message of the role {self.role}"
                )
        return self


class CustomTool(Open):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: str = Field(min_length=1, max_length=MAX_NAME)
    description: str | None = None
    input_schema: JsonSchema
    strict: bool | None = Field(
        default=None, description="true: the input of every call conforms to the schema."
    )


AnyTool = Annotated[
    Annotated[CustomTool, Tag("custom")] | Annotated[Other, Tag("other")],
    Discriminator(lambda tool: "custom" if _type(tool) in (None, "custom") else "other"),
]


class ToolChoice(Open):
    """The choice among the tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: Annotated[SmallName, Field(min_length=1)] | None = Field(
        default=None, description="The tool, for the type tool."
    )
    disable_parallel_tool_use: bool = Field(
        default=False, description="true ends the answer after its first call."
    )

    @model_validator(mode="after")
    def _check_name(self) -> "ToolChoice":
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("name: expected a name with the type tool, and with no other")
        return self


class Thinking(Open):
    """The switch of the reasoning."""

    type: Literal["enabled", "adaptive", "disabled"]


class Metadata(Open):
    """Facts about the request."""

    user_id: str | None = Field(default=None, description="Name of the user, for the log.")


class JsonOutput(Strict):
    """JSON that conforms to a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema = Field(alias="schema")


class OutputConfig(Open):
    """Options of the output."""

    format: JsonOutput | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None, description="How much Qwen3.8 thinks. Other models have no efforts."
    )


class CountTokensRequest(Open):
    """A conversation whose prompt is counted."""

    model: str
    messages: ListOf[Turn] = Field(min_length=1, max_length=MAX_ITEMS)
    system: str | Annotated[ListOf[TextBlock], Field(max_length=MAX_ITEMS)] | None = None
    tools: ListOf[AnyTool] = Field(default=[], max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = Field(
        default=None, description="Without it, the chat template decides."
    )
    output_config: OutputConfig | None = None

    @property
    def custom_tools(self) -> list[CustomTool]:
        """The tools that the model can call."""
        return [tool for tool in self.tools if isinstance(tool, CustomTool)]

    @property
    def other_tools(self) -> list[Other]:
        """The tools that this server cannot offer."""
        return [tool for tool in self.tools if isinstance(tool, Other)]

    @model_validator(mode="after")
    def _check_tools(self) -> "CountTokensRequest":
        if self.tool_choice and self.tool_choice.type == "any" and self.other_tools:
            kinds = ", ".join(sorted({tool.type for tool in self.other_tools})[:8])
            raise ValueError(
                f"tools: expected custom tools alone beside tool_choice any, got {kinds}: this "
                "server cannot offer them, leave them out"
            )
        return self

    @model_validator(mode="after")
    def _check_last(self) -> "CountTokensRequest":
        blocks = self.messages[-1].blocks
        texts = [block for block in blocks if isinstance(block, TextBlock) and block.text]
        if self.continues and (not texts or texts != blocks):
            raise ValueError(
                "messages: expected text alone in a last message of the assistant, which the "
                "answer continues: add a message of the user"
            )
        return self

    @property
    def continues(self) -> bool:
        """True if the answer continues the text of the last message."""
        return self.messages[-1].role == "assistant"


class MessagesRequest(CountTokensRequest):
    """A conversation for the model to continue."""

    max_tokens: int = Field(ge=1)
    stop_sequences: Annotated[ListOf[Stop], Field(max_length=MAX_STOPS)] | None = None
    stream: bool = False
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=2**31 - 1)
    metadata: Metadata | None = None


class MessageBody(BaseModel):
    """A complete answer."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, object]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: dict[str, int]


class TokenCount(BaseModel):
    """The number of tokens of a prompt."""

    input_tokens: int
