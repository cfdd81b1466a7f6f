"""Request of POST /v1/responses, and the items of its conversation."""

import base64
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, Discriminator, Field, Tag, model_validator

from tinyllm_serve.protocol.base import (
    MAX_ITEMS,
    MAX_TOOLS,
    CacheControl,
    ClientFields,
    DictOf,
    ListOf,
    NeutralValues,
    SmallName,
    Strict,
    TokenLimit,
    expect,
)
from tinyllm_serve.protocol.chat import Effort
from tinyllm_serve.protocol.messages import (
    TEXT_ALONE,
    LeftOutImage,
    Parsed,
    PastArguments,
    Text,
    count_images,
    text_of,
)
from tinyllm_serve.protocol.other_fields import NEUTRAL_VALUES, RESPONSE_NAMES
from tinyllm_serve.protocol.output_format import (
    JsonObjectFormat,
    NamedSchema,
    TextFormat,
)
from tinyllm_serve.protocol.sampling import GenerationFields
from tinyllm_serve.protocol.tools import Function, HostedTool, NamedFunction, ToolMode

_TEXT_HINTS = {
    "refusal": "expected input_text or output_text: write the refusal as a text",
    "text": "expected input_text or output_text: text is the type of /v1/chat/completions",
}


class TextContent(Text):
    """A piece of text. The fields that the server adds to its own text are ignored."""

    type: Annotated[
        Literal["input_text", "output_text"],
        expect(f"expected input_text or output_text, {TEXT_ALONE}", _TEXT_HINTS),
    ]
    annotations: list[object] | None = Field(default=None, max_length=MAX_ITEMS)
    logprobs: list[object] | None = Field(default=None, max_length=MAX_ITEMS)
    parsed: object = Parsed
    cache_control: CacheControl | None = Field(default=None, exclude=True)


class ImageContent(LeftOutImage):
    """An image, in the form of responses."""

    type: Literal["input_image"]
    image_url: str | None = Field(default=None, exclude=True)
    file_id: str | None = Field(default=None, exclude=True)
    detail: SmallName | None = Field(default=None, exclude=True)


Content = str | Annotated[ListOf[TextContent], Field(min_length=1, max_length=MAX_ITEMS)]


class _Item(Strict):
    """An item of the conversation. The fields that the server adds to its own items are ignored."""

    id: SmallName | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class MessageItem(_Item):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: Literal["commentary", "final_answer"] | None = Field(
        default=None, description="Ignored: chat templates know no phases."
    )


def encoded_reasoning(text: str) -> str:
    """Encode reasoning for `encrypted_content`.

    It is not encrypted, because the item has the reasoning in plain text too.
    """
    return base64.b64encode(text.encode(errors="replace")).decode()


def decoded_reasoning(text: str) -> str:
    """Decode the result of `encoded_reasoning`.

    Raises:
        ValueError: if the text is anything else.
    """
    return base64.b64decode(text, validate=True).decode()


def _check_encoded(text: str) -> str:
    try:
        decoded_reasoning(text)
    except ValueError:
        raise ValueError("expected the encrypted_content of an item of this server") from None
    return text


class ReasoningText(Text):
    """A piece of reasoning."""

    type: Literal["reasoning_text"]


class ReasoningItem(_Item):
    """The model's reasoning before a message."""

    type: Literal["reasoning"]
    content: ListOf[ReasoningText] | None = Field(default=None, max_length=MAX_ITEMS)
    encrypted_content: Annotated[str, AfterValidator(_check_encoded)] | None = Field(
        default=None, description="The reasoning in base64: used without `content`."
    )
    summary: list[object] = Field(default=[], max_length=0)

    @property
    def text(self) -> str:
        """The reasoning."""
        if self.content is None and self.encrypted_content is not None:
            return decoded_reasoning(self.encrypted_content)
        return text_of(self.content or [])


class CallItem(_Item):
    """A function call of the model."""

    type: Literal["function_call"]
    call_id: SmallName
    name: SmallName
    arguments: PastArguments
    parsed_arguments: object = Parsed


class CallOutputItem(_Item):
    """The result of a function call."""

    type: Literal["function_call_output"]
    call_id: SmallName
    output: (
        str
        | Annotated[ListOf[TextContent | ImageContent], Field(min_length=1, max_length=MAX_ITEMS)]
    )


def _type(item: object) -> str:
    """Return the type of an item. An item without a type is a message."""
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return kind if isinstance(kind, str) else "message"


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")],
    Discriminator(
        _type,
        custom_error_type="item_type",
        custom_error_message="expected an item of the type message, reasoning, function_call or "
        "function_call_output. Nothing is stored here, so that an item_reference refers to "
        "nothing: send the items themselves (AI SDK: store: false)",
    ),
]


class FlatSchemaFormat(NamedSchema):
    """JSON that conforms to a schema, in this endpoint's flat form."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "json_schema": "unknown here: write name and schema beside type"
    }

    type: Literal["json_schema"]


OutputFormat = Annotated[
    TextFormat | JsonObjectFormat | FlatSchemaFormat, Field(discriminator="type")
]


class FunctionTool(Function):
    """A function, in this endpoint's flat form."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "function": "unknown here: write name and parameters beside type"
    }

    type: Literal["function"]
    cache_control: CacheControl | None = Field(default=None, exclude=True)


ResponseTool = Annotated[FunctionTool | HostedTool, Field(discriminator="type")]


class TextOptions(Strict):
    """Options of the output text."""

    format: OutputFormat | None = None
    verbosity: Literal["medium"] | None = Field(
        default=None, description="The model has one verbosity; other values are refused."
    )


class ReasoningOptions(Strict):
    """Options of the reasoning."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        default=None,
        description="The reasoning is returned in full, with no summary of any kind.",
    )


class ResponseStreamOptions(Strict):
    """Options of a stream."""

    include_obfuscation: Literal[False] | None = None


_NOT_STORED = "nothing is stored here: send all items of the conversation (AI SDK: store: false)"

_ONLY_IN_CHAT = (
    *("chat_template_kwargs", "frequency_penalty", "logit_bias", "logprobs", "min_p", "n"),
    *("presence_penalty", "repetition_penalty", "seed", "stop", "top_k"),
)


class InputTokensRequest(Strict):
    """A conversation whose prompt is counted."""

    unsupported: ClassVar[Mapping[str, str]] = {
        **RESPONSE_NAMES,
        "previous_response_id": _NOT_STORED,
        "conversation": _NOT_STORED,
        "prompt": "prompts are not stored here: send instructions and input",
        "messages": "unknown here: use input",
        "reasoning_effort": "unknown here: use reasoning.effort",
        "response_format": "unknown here: use text.format",
        **dict.fromkeys(
            ("max_completion_tokens", "max_tokens", "n_predict", "num_predict"),
            "unknown here: use max_output_tokens",
        ),
        **dict.fromkeys(
            ("enable_thinking", "reasoning_budget", "think", "thinking", "thinking_token_budget"),
            'unknown here: use reasoning.effort; "none" answers without reasoning',
        ),
        **dict.fromkeys(_ONLY_IN_CHAT, "unknown here: /v1/chat/completions has it"),
        "repeat_penalty": "unknown here: /v1/chat/completions has repetition_penalty",
        "n_probs": "unknown here: /v1/chat/completions has logprobs",
    }
    neutral: ClassVar[NeutralValues] = NEUTRAL_VALUES

    model: str | None = Field(default=None, description="The served model, or null.")
    input: str | Annotated[ListOf[InputItem], Field(min_length=1, max_length=MAX_ITEMS)]
    instructions: str | None = None
    tools: ListOf[ResponseTool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: Annotated[
        ToolMode | NamedFunction | None,
        expect(
            'expected auto, none, required or a function, as {"type": "function", "name": "f"}, '
            "because this server runs no other tools"
        ),
    ] = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["disabled"] | None = None

    @property
    def functions(self) -> list[FunctionTool]:
        """The tools that the model can call."""
        return [tool for tool in self.tools or [] if isinstance(tool, FunctionTool)]

    @property
    def hosted(self) -> list[HostedTool]:
        """The tools that this server cannot offer."""
        return [tool for tool in self.tools or [] if isinstance(tool, HostedTool)]

    @property
    def images_left_out(self) -> int:
        """The number of images in results of calls, which the model does not see."""
        items = [] if isinstance(self.input, str) else self.input
        return count_images(item.output for item in items if isinstance(item, CallOutputItem))

    @model_validator(mode="after")
    def _check_tools(self) -> "InputTokensRequest":
        if self.tool_choice == "required" and self.hosted:
            kinds = ", ".join(sorted({tool.type for tool in self.hosted}))
            raise ValueError(
                f"tools: expected functions alone beside tool_choice: required, got {kinds}: "
                "this server cannot run them, leave them out"
            )
        return self


class InputTokens(BaseModel):
    """The number of tokens of a prompt."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ResponseRequest(InputTokensRequest, ClientFields, GenerationFields):
    """A conversation for the model to continue. The server stores nothing of it."""

    max_output_tokens: TokenLimit = None
    stream_options: ResponseStreamOptions | None = None
    background: Literal[False] | None = None
    include: ListOf[Literal["reasoning.encrypted_content"]] | None = Field(
        default=None,
        max_length=16,
        description="Adds the reasoning in base64, for clients that send back only this field.",
    )
    top_logprobs: Annotated[
        int | None,
        Field(ge=0, le=0),
        expect("expected 0: /v1/chat/completions has log-probabilities"),
    ] = None
    client_metadata: DictOf[Annotated[str, Field(max_length=8192)]] | None = Field(
        default=None, max_length=32, description="Sent by Codex; this server does not use it."
    )


class ResponseBody(BaseModel):
    """The fields of a response that clients need. The other fields repeat the request."""

    id: str
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[dict[str, object]]
    usage: dict[str, object]
    object: Literal["response"]
