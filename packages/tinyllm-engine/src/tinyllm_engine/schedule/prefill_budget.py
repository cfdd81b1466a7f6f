"""The number of prompt tokens that a step prefills."""

from __future__ import annotations

_MIN_TOKENS = 32
"""The fewest prompt tokens of a step. With fewer, reading the weights takes most of the time."""

_ALONE = 4
"""The factor of the duration if no request waits for its next token. Reading the weights then takes
a smaller part of the time of a long prompt."""

_SMOOTHING = 0.3
"""The weight of the latest step in the moving average of the speed."""


class PrefillBudget:
    """Measures the speed of the prefill, and adapts the number of tokens to a target duration.

    Attributes:
        seconds: the target duration of the prefill in a step.
        max_tokens: the upper limit of `tokens`.
        tokens: the number of prompt tokens for the next step.
        tokens_alone: the same for a step while no request decodes.
    """

    def __init__(self, seconds: float, max_tokens: int) -> None:
        """Start with a small number of tokens, until the first measurement."""
        self.seconds = seconds
        self.max_tokens = max_tokens
        self._rate: float | None = None  # tokens per second
        self.tokens = self.tokens_alone = min(4 * _MIN_TOKENS, max_tokens)

    def observe(self, tokens: int, seconds: float) -> None:
        """Update the speed and `tokens` after a step prefilled `tokens` tokens in `seconds`."""
        rate = tokens / max(seconds, 1e-9)
        self._rate = rate if self._rate is None else self._rate + _SMOOTHING * (rate - self._rate)
        self.tokens = self._in_time(self._rate * self.seconds)
        self.tokens_alone = self._in_time(self._rate * self.seconds * _ALONE)

    def _in_time(self, tokens: float) -> int:
        """Return `tokens` in whole tiles: kernels compute prompts in tiles of 32 tokens."""
        whole = int(tokens) // _MIN_TOKENS * _MIN_TOKENS
        return min(max(whole, _MIN_TOKENS), self.max_tokens)
