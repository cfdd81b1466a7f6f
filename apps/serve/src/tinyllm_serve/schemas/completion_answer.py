"""What POST /v1/completions gives."""

from typing import Literal

from pydantic import BaseModel

from tinyllm_serve.generation import Ending
from tinyllm_serve.schemas.usage import UsageBody


class CompletionLogprobs(BaseModel):
    """The log-probabilities of a text's tokens, one list for each kind of fact."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One of the texts; in a stream what is new of it, and `finish_reason` null until its end."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Ending | None = None


class CompletionAnswer(BaseModel):
    """All texts, or an event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody | None = None
