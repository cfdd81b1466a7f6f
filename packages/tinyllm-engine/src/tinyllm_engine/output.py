"""The results of the engine: the tokens of requests, and its own counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RequestFinishReason = Literal["stop", "length", "cancelled", "error"]
"""The reason why a request has ended.

"stop": an end token or a stop string. "length": `max_tokens` or the model's context. "cancelled":
the caller cancelled it. "error": it was computed in two failing steps, with no token in between.
"""


@dataclass(frozen=True)
class Usage:
    """Tokens of a request so far.

    Attributes:
        prompt_tokens: tokens of the prompt.
        cached_tokens: prompt tokens that were in the prefix cache when the request was admitted.
        completion_tokens: tokens generated, the end token included.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class TokenLogprob:
    """A token and the log-probability that the model gave it."""

    token: int
    logprob: float


@dataclass(frozen=True)
class SampledToken:
    """A token chosen after one position.

    Attributes:
        token: the id.
        logprob: its log-probability, if the request asked for it.
        top: the likeliest tokens, best first, as many as the request asked for.
    """

    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Output:
    """A token, and the text that it completes.

    Attributes:
        text: the text to show next; empty while a character is incomplete or may begin a stop
            string.
        token: the id chosen.
        finish_reason: None before the last output.
        usage: tokens so far.
        logprob: the token's log-probability, if the request asked for it.
        top: the likeliest tokens, best first, as many as the request asked for.
    """

    text: str
    token: int
    finish_reason: RequestFinishReason | None
    usage: Usage
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class EngineStats:
    """State of an engine, and counts since it was made.

    Attributes:
        running: requests that hold pages.
        waiting: requests in the queue.
        pages_total: pages in all.
        pages_used: pages that requests hold.
        pages_cached: pages that only the prefix cache holds.
        prompt_tokens: tokens of all prompts.
        cached_tokens: prompt tokens that were in the prefix cache.
        generated_tokens: tokens generated.
        preemptions: times that a request had to free its pages and compute them again.
        draft_tokens: draft tokens verified.
        accepted_tokens: draft tokens accepted.
        failed_steps: steps that raised an error and were computed again.
    """

    running: int
    waiting: int
    pages_total: int
    pages_used: int
    pages_cached: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    preemptions: int
    draft_tokens: int
    accepted_tokens: int
    failed_steps: int
