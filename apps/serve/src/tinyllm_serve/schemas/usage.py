"""Token counts of a request."""

from collections.abc import Sequence

from pydantic import BaseModel
from tinyllm_engine import Usage


class PromptTokens(BaseModel):
    """What the prompt's tokens are made of."""

    cached_tokens: int


class CompletionTokens(BaseModel):
    """What the answers' tokens are made of."""

    reasoning_tokens: int


class UsageBody(BaseModel):
    """What a request has cost, all its answers together; a prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    completion_tokens_details: CompletionTokens

    @classmethod
    def of(
        cls, usages: Sequence[Usage], reasoning_tokens: int = 0, *, choices: int = 1
    ) -> "UsageBody":
        """Add up answers; of each prompt there are `choices` in a row."""
        prompt = sum(usage.prompt_tokens for usage in usages[::choices])
        cached = sum(usage.cached_tokens for usage in usages[::choices])
        completion = sum(usage.completion_tokens for usage in usages)
        return cls(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokens(cached_tokens=cached),
            completion_tokens_details=CompletionTokens(reasoning_tokens=reasoning_tokens),
        )
