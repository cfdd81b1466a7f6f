"""Request and response of POST /v1/chat/completions."""

from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from tinyllm_serve.protocol.base import (
    MAX_ITEMS,
    MAX_TOOLS,
    ChatFinishReason,
    ClientFields,
    CompletionFields,
    ListOf,
    Strict,
    TokenLimit,
    UsageBody,
    expect,
    is_null,
)
from tinyllm_serve.protocol.messages import (
    CalledFunction,
    Message,
    ToolMessage,
    count_images,
)
from tinyllm_serve.protocol.other_fields import OTHER_NAMES
from tinyllm_serve.protocol.sampling import SamplingFields
from tinyllm_serve.protocol.tools import NamedTool, Tool, ToolMode

MAX_TOP_LOGPROBS = 20

MAX_VARIABLES = 64

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

_TEMPLATE_EFFORTS: dict[Effort, str] = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "xhigh",
    "xhigh": "xhigh",
    "max": "xhigh",
}
"""The efforts that Qwen3.8's chat template knows. Other templates have none and ignore them."""

_SET_BY_SERVER = ("messages", "tools", "add_generation_prompt", "documents")
_USED_BY_JINJA = ("self", "super", "loop", "caller", "varargs", "kwargs", "context", "environment")


class TemplateVariables(BaseModel):
    """Variables of the chat template. The template decides which names mean something."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    enable_thinking: bool | None = Field(
        default=None, description="true: the model thinks before it answers."
    )

    @model_validator(mode="after")
    def _check_names(self) -> "TemplateVariables":
        if len(self.extra) > MAX_VARIABLES:
            raise ValueError(f"expected at most {MAX_VARIABLES} variables, got {len(self.extra)}")
        for name in self.extra:
            if name in _SET_BY_SERVER:
                raise ValueError(f"{name}: expected no variable of this name, the server sets it")
            if name in _USED_BY_JINJA or not name.isidentifier():
                raise ValueError(
                    f"expected names of variables, got {name[:40]!r}: templates cannot use it"
                )
        return self

    @classmethod
    def of_effort(cls, effort: Effort) -> "TemplateVariables":
        """Return the variables that let the model think so much."""
        if effort == "none":
            return cls(enable_thinking=False)
        known = {"reasoning_effort": _TEMPLATE_EFFORTS[effort]}
        return cls(enable_thinking=True).model_copy(update=known)

    @property
    def extra(self) -> dict[str, object]:
        """All variables but `enable_thinking`."""
        return dict(self.model_extra or {})

    def over(self, defaults: "TemplateVariables") -> "TemplateVariables":
        """Return these variables, and those of `defaults` that are not set here."""
        thinking = {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}
        return defaults.model_copy(update={**self.extra, **thinking})


class PromptEnd(Strict):
    """Fields of vLLM that choose the end of a conversation's prompt."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = Field(
        default=None,
        description="true: the answer continues the text, or the reasoning, of the last message.",
    )

    @model_validator(mode="after")
    def _check_prompt_end(self) -> "PromptEnd":
        if self.add_generation_prompt is bool(self.continue_final_message):
            raise ValueError(
                "add_generation_prompt: expected the opposite of continue_final_message, got "
                f"{str(self.add_generation_prompt).lower()}: leave it out"
            )
        return self


class ChatRequest(ClientFields, SamplingFields, PromptEnd):
    """A conversation for the model to continue."""

    unsupported: ClassVar[Mapping[str, str]] = {
        **OTHER_NAMES,
        "input": "unknown here: use messages, or /v1/responses",
        "instructions": "unknown here: send a message of the role system, or use /v1/responses",
        "max_output_tokens": "unknown here: use max_completion_tokens",
        "prompt": "unknown here: use messages, or /v1/completions",
    }

    messages: ListOf[Message] = Field(min_length=1, max_length=MAX_ITEMS)
    max_tokens: TokenLimit = Field(default=None, description="Older name of max_completion_tokens.")
    max_completion_tokens: TokenLimit = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: ListOf[Tool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: ToolMode | NamedTool | None = Field(
        default=None,
        description="required, or a function: the answer is calls that conform to the schema.",
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="false ends the answer after its first call."
    )
    reasoning_effort: Effort | None = Field(
        default=None,
        description="none: answer at once; all other values: think first, if the model can. "
        "Qwen3.8 thinks little with minimal and low, and most with high, xhigh and max.",
    )
    verbosity: Literal["medium"] | None = Field(
        default=None, description="The model has one verbosity; other values are refused."
    )
    modalities: ListOf[Literal["text"]] | None = Field(default=None, max_length=4)
    chat_template_kwargs: TemplateVariables = TemplateVariables()
    echo: Annotated[
        Literal[False] | None, expect("expected false: the answer alone is returned")
    ] = None

    include_reasoning: Annotated[
        Literal[True] | None,
        expect('expected true: reasoning_effort: "none" answers without reasoning'),
    ] = None

    _schema_names: list[str] | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _check_chat_fields(self) -> "ChatRequest":
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: expected logprobs: true beside it")
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise ValueError(
                f"max_tokens: expected {self.max_completion_tokens}, as max_completion_tokens, "
                f"got {self.max_tokens}: give one of them"
            )
        if self.tool_choice not in (None, "none") and not self.tools:
            raise ValueError("tool_choice: expected tools beside it")
        if isinstance(self.tool_choice, NamedTool) and not self.callable_tools:
            known = ", ".join(sorted(tool.function.name for tool in self.offered_tools))
            raise ValueError(f"tool_choice: expected one of {known}, got {self.tool_choice.name}")
        if self.must_call and self.ignore_eos:
            raise ValueError("tool_choice: expected no ignore_eos beside it")
        if self.has_strict_tools and self.ignore_eos:
            raise ValueError("ignore_eos: expected false beside strict tools")
        return self

    @property
    def schema_names(self) -> list[str]:
        """The request's names of the schemas of `tools`, for errors."""
        if self._schema_names is not None:
            return self._schema_names
        return [f"tools.{index}.function.parameters" for index in range(len(self.tools or []))]

    def with_schema_names(self, names: Iterable[str]) -> "ChatRequest":
        """Set `schema_names`, for a request of another API, and return this request."""
        self._schema_names = [*names]
        return self

    @property
    def token_limit(self) -> int | None:
        """The most tokens of an answer; None if the request has no limit."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def field_names(self) -> Mapping[str, str]:
        """The request's names of the fields that the engine names differently, for errors."""
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {"prompt": "messages", "max_tokens": limit}

    @property
    def images_left_out(self) -> int:
        """The number of images in results of calls, which the model does not see."""
        results = (each.content for each in self.messages if isinstance(each, ToolMessage))
        return count_images(results)

    @property
    def offered_tools(self) -> list[Tool]:
        """The tools that the prompt shows to the model."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def must_call(self) -> bool:
        """True if the answer must consist of calls."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    @property
    def callable_tools(self) -> list[Tool]:
        """The offered tools that the answer may call."""
        chosen = self.tool_choice
        if not isinstance(chosen, NamedTool):
            return self.offered_tools
        return [tool for tool in self.offered_tools if tool.function.name == chosen.name]

    @property
    def has_strict_tools(self) -> bool:
        """True if calls of at least one tool must conform to the tool's schema."""
        return any(tool.function.strict for tool in self.callable_tools)

    @property
    def template_variables(self) -> TemplateVariables:
        """Variables of the chat template. Those that the request names override the effort."""
        given = self.chat_template_kwargs
        if self.reasoning_effort is None:
            return given
        return given.over(TemplateVariables.of_effort(self.reasoning_effort))


class TokenLogprobBody(BaseModel):
    """A token, its log-probability and its bytes, which need not be whole characters."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenLogprob(TokenLogprobBody):
    """The chosen token, with the likeliest tokens beside it."""

    top_logprobs: list[TokenLogprobBody]


class ChatLogprobs(BaseModel):
    """Log-probabilities of an answer's tokens, reasoning included."""

    content: list[ChosenLogprob]
    refusal: None = None


class ToolCallBody(BaseModel):
    """A function call."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AnswerMessage(BaseModel):
    """An answer. `content` is null if the answer consists of calls."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = Field(default=None, exclude_if=is_null)
    tool_calls: list[ToolCallBody] | None = Field(default=None, exclude_if=is_null)


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason


class ChatResponse(CompletionFields):
    """The complete answers."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: UsageBody
    service_tier: Literal["default"] = "default"
