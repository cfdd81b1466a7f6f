"""How many tokens of prompts fit into a step."""

from __future__ import annotations

_FEWEST = 32
"""Below it the weights are read for almost nothing."""

_WEIGHT = 0.3
"""What the latest step counts in the average."""


class Pace:
    """Learns how fast prompts are prefilled, and says how many tokens take a given time.

    Attributes:
        seconds: how long the prompts' share of a step should take.
        most: tokens in any case at most.
    """

    def __init__(self, seconds: float, most: int) -> None:
        """Know nothing yet."""
        self.seconds = seconds
        self.most = most
        self._rate: float | None = None  # tokens a second

    @property
    def tokens(self) -> int:
        """Tokens for the next step."""
        wanted = 4 * _FEWEST if self._rate is None else int(self._rate * self.seconds)
        return min(max(wanted, _FEWEST), self.most)

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a step."""
        rate = tokens / max(seconds, 1e-9)
        self._rate = rate if self._rate is None else self._rate + _WEIGHT * (rate - self._rate)
