"""The schedule of a run: how far it is, and what follows for learning rate and quantization."""

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
        """The share of the budget that is used, 0 to 1."""
        timed = seconds / 60 / self.minutes if self.minutes else 0.0
        return min(1.0, max(tokens / self.tokens, timed))


def rate(progress: float) -> float:
    """Factor of the learning rate: up in a line, level, then down in a line to zero."""
    if progress < WARM_UP:
        return max(progress, 0.05 * WARM_UP) / WARM_UP
    return min(1.0, (1.0 - progress) / (1.0 - DECAY_FROM))


def quantized(progress: float) -> bool:
    """Whether the weights are those of the 4-bit form: in the last quarter of the run."""
    return progress >= QUANTIZED_FROM
