"""Request and response of POST /v1/completions."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field
from tinyllm_qwen import Tokenizer

from tinyllm_serve.protocol.base import (
    MAX_TOKENS,
    ChatFinishReason,
    CompletionFields,
    ListOf,
    UsageBody,
)
from tinyllm_serve.protocol.sampling import SamplingFields

MAX_PROMPTS = 128
MAX_LOGPROBS = 5

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[ListOf[TokenId], Field(min_length=1, max_length=MAX_TOKENS)]
Texts = Annotated[ListOf[str], Field(min_length=1, max_length=MAX_PROMPTS)]
TokenLists = Annotated[ListOf[Tokens], Field(min_length=1, max_length=MAX_PROMPTS)]
TextOrTokens = str | Texts | Tokens | TokenLists


def token_lists(given: TextOrTokens, tokenizer: Tokenizer, max_tokens: int) -> list[list[int]]:
    """Return the tokens of each text. A single text or token list gives a list of one item.

    Raises:
        TextTooLongError: if a text has more than `max_tokens` tokens.
    """
    if isinstance(given, str):
        return [tokenizer.encode(given, max_tokens=max_tokens)]
    lists: list[list[int]] = []
    single: list[int] = []
    for item in given:
        match item:
            case str():
                lists.append(tokenizer.encode(item, max_tokens=max_tokens))
            case int():
                single.append(item)
            case list():
                lists.append(item)
    return lists or [single]


class CompletionRequest(SamplingFields):
    """One or more texts for the model to continue."""

    prompt: TextOrTokens
    max_tokens: int | None = Field(
        default=None, ge=1, description="The default is 16, as OpenAI's."
    )
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = Field(
        default=None, description="Begin with the prompt; not beside logprobs."
    )


class CompletionLogprobs(BaseModel):
    """Log-probabilities of a text's tokens, one list for each kind of value."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
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
