"""The body of POST /v1/completions."""

from typing import Annotated

from pydantic import Field

from tinyllm_serve.schemas.sampling import SamplingFields

MAX_PROMPTS = 128
MAX_LOGPROBS = 5

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[TokenId], Field(min_length=1)]
Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
TokenLists = Annotated[list[Tokens], Field(min_length=1, max_length=MAX_PROMPTS)]
TextOrTokens = str | Texts | Tokens | TokenLists


class CompletionRequest(SamplingFields):
    """A text, or several, that the model is to go on with."""

    prompt: TextOrTokens
    max_tokens: int | None = Field(
        default=None, ge=1, description="16 unless given, as OpenAI has it."
    )
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = Field(
        default=None, description="Begin with the prompt; not beside logprobs."
    )
