"""A request that the engine has taken."""

from __future__ import annotations

import mlx.core as mx
from tinyllm_qwen.sampling.sample import Sample
from tinyllm_qwen.text.output import OutputProcessor

from tinyllm_engine.chooser import Chooser
from tinyllm_engine.output import FinishReason, Output, TokenLogprob, Usage
from tinyllm_engine.request import Request
from tinyllm_engine.sequence import Sequence


class Handle:
    """What the engine keeps of a request; to the caller it stands for the request.

    Attributes:
        sequence: its tokens and pages.
        chooser: what chooses its tokens.
        text: what turns them into text.
        max_tokens: how many tokens there may be, within the model's context.
        finish_reason: None while it is under way.
    """

    def __init__(
        self, sequence: Sequence, chooser: Chooser, text: OutputProcessor, max_tokens: int
    ) -> None:
        """Hold the parts."""
        self.sequence = sequence
        self.chooser = chooser
        self.text = text
        self.max_tokens = max_tokens
        self.finish_reason: FinishReason | None = None

    @property
    def request(self) -> Request:
        """What was asked."""
        return self.sequence.request

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        sequence = self.sequence
        return Usage(len(self.request.prompt), sequence.cached or 0, sequence.generated)

    @property
    def left(self) -> int:
        """How many tokens may still be chosen."""
        return self.max_tokens - self.sequence.generated

    def wanted(self, sample: Sample) -> list[mx.array]:
        """What of a sample `take` will look at: all that has to be computed for this request."""
        if not self._reports:
            return [sample.token]
        rivals = (sample.top_tokens, sample.top_logprobs)
        return [sample.token, sample.logprob, *(each for each in rivals if each is not None)]

    def take(self, token: int, sample: Sample) -> Output:
        """Go on with a token, which may be the last; what the caller gets of it."""
        self.sequence.tokens.append(token)
        text, reason = self.text.push(token, ended=self.left == 0)
        self.finish_reason = reason
        if not self._reports:
            return Output(text, token, reason, self.usage)
        return Output(text, token, reason, self.usage, float(sample.logprob), _top(sample))

    @property
    def _reports(self) -> bool:
        """Whether the request wants log-probabilities."""
        return self.request.logprobs or self.request.sampling.top_logprobs > 0


def _top(sample: Sample) -> tuple[TokenLogprob, ...]:
    """The likeliest tokens, if they were asked for."""
    if sample.top_tokens is None or sample.top_logprobs is None:
        return ()
    pairs = zip(sample.top_tokens, sample.top_logprobs, strict=True)
    return tuple(TokenLogprob(int(token), float(logprob)) for token, logprob in pairs)
