"""The number of prompt tokens that fit into a step."""

from __future__ import annotations

_FEWEST = 32
"""The fewest tokens of a step: with fewer, reading the weights takes most of the time."""

_WEIGHT = 0.3
"""The weight of the latest step in the average."""


class PrefillBudget:
    """Measures how fast prompts are prefilled, and gives the tokens that take a given time.

    Attributes:
        seconds: the time that the prefill of a step should take.
        max_tokens: the most tokens in any case.
        tokens: the tokens for the next step.
    """

    def __init__(self, seconds: float, max_tokens: int) -> None:
        """Begin with an estimate, before the first measurement."""
        self.seconds = seconds
        self.max_tokens = max_tokens
        self._rate: float | None = None  # tokens a second
        self.tokens = min(4 * _FEWEST, max_tokens)

    def observe(self, tokens: int, seconds: float) -> None:
        """Take the measurement of a step into account."""
        rate = tokens / max(seconds, 1e-9)
        self._rate = rate if self._rate is None else self._rate + _WEIGHT * (rate - self._rate)
        self.tokens = min(max(int(self._rate * self.seconds), _FEWEST), self.max_tokens)
