"""What is asked of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tinyllm_qwen import SamplingParams

from tinyllm_engine.grammar.grammar import Grammar


class RequestError(ValueError):
    """A request that can never be served; the message says what to change."""


class PromptTooLongError(RequestError):
    """A prompt that leaves no room for an answer in the model's context."""


@dataclass(frozen=True)
class Request:
    """A prompt, and how it is to be continued.

    Attributes:
        prompt: token ids.
        max_tokens: how many tokens at most; fewer where the model's context ends.
        sampling: how tokens are chosen; greedy unless told.
        stop: strings before which the text ends.
        priority: lower comes sooner. It moves a request ahead in the queue and does not let it
            starve others: see `Scheduler`.
        grammar: what the text must conform to, or None.
        logprobs: report the log-probability of each token chosen, also without `top_logprobs`.
        ignore_end: go on after end tokens, as benchmarks want.

    Raises:
        RequestError: if the prompt is empty, `max_tokens` is below 1, or end tokens are to be
            ignored with a grammar, whose texts they end.
    """

    prompt: Sequence[int]
    max_tokens: int = 512
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: Sequence[str] = ()
    priority: int = 0
    grammar: Grammar | None = None
    logprobs: bool = False
    ignore_end: bool = False

    def __post_init__(self) -> None:
        """Check what needs no model."""
        if not self.prompt:
            raise RequestError("prompt: expected at least one token, got none")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens: expected at least 1, got {self.max_tokens}")
        if self.grammar is not None and self.ignore_end:
            raise RequestError("ignore_end: expected False with a grammar, whose texts end")
