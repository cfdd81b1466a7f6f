"""The schedule of a run: its progress, learning rate and start of quantization."""

from dataclasses import dataclass

# Shares of the budget.
WARM_UP = 0.02
DECAY_FROM = 0.35
QUANTIZED_FROM = 0.75


@dataclass(frozen=True)
class Schedule:
    """A budget of tokens and, optionally, of minutes: the run ends when either is used up."""

    tokens: float
    minutes: float | None

    def progress(self, tokens: float, seconds: float) -> float:
        """Return the share of the budget in use, 0 to 1."""
        timed = seconds / 60 / self.minutes if self.minutes else 0.0
        return min(1.0, max(tokens / self.tokens, timed))


def rate(progress: float) -> float:
    """Return the factor of the learning rate: linear warm-up, constant, then linear decay to 0."""
    if progress < WARM_UP:
        return max(progress, 0.05 * WARM_UP) / WARM_UP
    return min(1.0, (1.0 - progress) / (1.0 - DECAY_FROM))


def quantized(progress: float) -> bool:
    """Return True in the last quarter of the run, which trains with 4-bit weights."""
    return progress >= QUANTIZED_FROM
