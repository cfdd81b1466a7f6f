"""What the replies of a server come to."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tinyllm_bench.serving.reply import Reply

Percentiles = tuple[float, float, float]
"""Of which half, 95 and 99 of a hundred are no longer."""


@dataclass(frozen=True)
class Figures:
    """A server under a load; times in seconds.

    Attributes:
        name: of the server.
        rate: requests that came in a second, on average; 0 if all came at once.
        answered: requests that got an answer.
        failed: the others.
        seconds: from the first request to the last piece.
        tokens_per_second: of all answers together.
        prompt_tokens: of all prompts.
        cached_tokens: of them, those that the server had.
        first_token: from a request to its first piece.
        between_tokens: between two pieces of an answer.
    """

    name: str
    rate: float
    answered: int
    failed: int
    seconds: float
    tokens_per_second: float
    prompt_tokens: int
    cached_tokens: int
    first_token: Percentiles
    between_tokens: Percentiles

    @classmethod
    def of(cls, name: str, rate: float, replies: Sequence[Reply]) -> "Figures":
        """Add up the replies."""
        good = [reply for reply in replies if reply.error is None]
        began = min((reply.sent for reply in replies), default=0.0)
        seconds = max((reply.pieces[-1] for reply in good), default=began) - began
        tokens = sum(reply.tokens for reply in good)
        return cls(
            name=name,
            rate=rate,
            answered=len(good),
            failed=len(replies) - len(good),
            seconds=seconds,
            tokens_per_second=tokens / seconds if seconds else 0.0,
            prompt_tokens=sum(reply.prompt_tokens for reply in good),
            cached_tokens=sum(reply.cached_tokens for reply in good),
            first_token=_percentiles([reply.first for reply in good]),
            between_tokens=_percentiles([gap for reply in good for gap in reply.gaps]),
        )


def _percentiles(numbers: Sequence[float]) -> Percentiles:
    if not numbers:
        return 0.0, 0.0, 0.0
    half, most, nearly_all = np.percentile(numbers, [50, 95, 99])
    return float(half), float(most), float(nearly_all)
