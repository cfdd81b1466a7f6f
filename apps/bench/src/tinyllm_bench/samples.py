"""Repeated measurements of one time, and what they say together."""

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Samples:
    """Seconds that one call took, measured several times.

    Attributes:
        seconds: one number a sample, in the order of measurement.
        calls: calls in each sample; a number above is the mean of so many.
        cold: whether the only sample is the first call, which the time budget left alone: what a
            first call costs beside (page faults, compilation) is in it.

    Raises:
        ValueError: if there are no samples.
    """

    seconds: tuple[float, ...]
    calls: int = 1
    cold: bool = False

    def __post_init__(self) -> None:
        """Refuse what has no median."""
        if not self.seconds:
            raise ValueError("seconds: expected at least one sample, got none")

    @property
    def median(self) -> float:
        """Half of the samples took longer."""
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The bounds of the middle half, interpolated between samples; the spread."""
        if len(self.seconds) == 1:
            return self.seconds[0], self.seconds[0]
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    @property
    def spread(self) -> float:
        """The middle half's width, as a share of the median."""
        low, high = self.quartiles
        return (high - low) / self.median if self.median else 0.0
