"""Request and response of POST /v1/completions."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, Field, model_validator

from tinyllm_serve.protocol.base import (
    MAX_TOKENS,
    ChatFinishReason,
    CompletionFields,
    ListOf,
    NeutralValues,
    UsageBody,
    expect,
)
from tinyllm_serve.protocol.other_fields import COMPLETION_NAMES, NEUTRAL_VALUES
from tinyllm_serve.protocol.sampling import SamplingFields

MAX_PROMPTS = 128
MAX_LOGPROBS = 5

_ONLY_IN_CHAT = (
    *("chat_template_kwargs", "continue_final_message", "parallel_tool_calls", "reasoning_effort"),
    *("tool_choice", "tools"),
)

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[ListOf[TokenId], Field(min_length=1, max_length=MAX_TOKENS)]
Texts = Annotated[ListOf[str], Field(min_length=1, max_length=MAX_PROMPTS)]
TokenLists = Annotated[ListOf[Tokens], Field(min_length=1, max_length=MAX_PROMPTS)]
TextOrTokens = str | Texts | Tokens | TokenLists


class CompletionRequest(SamplingFields):
    """One or more texts for the model to continue."""

    unsupported: ClassVar[Mapping[str, str]] = {
        **COMPLETION_NAMES,
        "max_completion_tokens": "unknown here: use max_tokens",
        "messages": "unknown here: use prompt, or /v1/chat/completions",
        "top_logprobs": "unknown here: use logprobs, which is a number here",
        **dict.fromkeys(_ONLY_IN_CHAT, "unknown here: /v1/chat/completions has it"),
    }
    # Here vLLM adds special tokens by default, of which the tokenizers of Qwen's models have none.
    neutral: ClassVar[NeutralValues] = {**NEUTRAL_VALUES, "add_special_tokens": (False, True)}

    prompt: TextOrTokens
    suffix: Annotated[
        Literal[""] | None,
        expect(
            "expected an empty text, because this server fills no gaps: for models that were "
            "trained to, such as Qwen2.5-Coder, write their tokens <|fim_prefix|> and so on into "
            "the prompt"
        ),
    ] = None
    max_tokens: Annotated[
        int | None, Field(ge=0), expect("expected an integer from 0 on: leave it out for 16")
    ] = Field(
        default=None,
        description="The default is 16, as OpenAI's. 0 is allowed beside echo and logprobs.",
    )
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = Field(
        default=None,
        description="Begin with the prompt, and with its log-probabilities beside logprobs.",
    )

    @model_validator(mode="after")
    def _check_limit(self) -> "CompletionRequest":
        if self.max_tokens == 0 and not self.scores_prompt:
            raise ValueError("max_tokens: expected at least 1 without echo and logprobs, got 0")
        return self

    @property
    def scores_prompt(self) -> bool:
        """True if the log-probabilities of the prompt are wanted."""
        return bool(self.echo) and self.logprobs is not None


class CompletionLogprobs(BaseModel):
    """Log-probabilities of a text's tokens, one list for each kind of value.

    The first token of a prompt has none.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One text, or in a stream the new part of it; `finish_reason` is null until its end."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: ChatFinishReason | None


class CompletionResponse(CompletionFields):
    """The complete texts, or an event of a stream."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: UsageBody | None = Field(
        description="Null in events before the last one, with `include_usage`."
    )
