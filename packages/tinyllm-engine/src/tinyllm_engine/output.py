"""What the engine gives, token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Usage:
    """Tokens that a request has cost so far.

    Attributes:
        prompt_tokens: tokens of the prompt.
        cached_tokens: how many of them the prefix cache had when the request was admitted.
        completion_tokens: tokens chosen, the end token included.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class TokenLogprob:
    """A token and the logarithm of the probability that the model gave it."""

    token: int
    logprob: float


@dataclass(frozen=True)
class Output:
    """One token, and the text that it made certain.

    Attributes:
        text: what to show next; empty while a character is incomplete or may begin a stop string.
        token: the id chosen.
        finish_reason: None before the last output; "stop" for an end token or a stop string,
            "length" when the tokens ran out, "cancelled" when the request was taken back.
        usage: tokens so far.
        logprob: the token's log-probability, if the request asked for it.
        top: the likeliest tokens, best first, as many as the request asked for.
    """

    text: str
    token: int
    finish_reason: FinishReason | None
    usage: Usage
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()
