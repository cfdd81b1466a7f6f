"""Limits of a roofline: the reading speed, and the peaks of the units that multiply."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyllm_bench.ceilings import Ceilings
from tinyllm_bench.cost import Cost
from tinyllm_cli.messages import UsageError


@dataclass(frozen=True)
class Limits:
    """Limits of the roofline model of Williams, Waterman and Patterson (2009).

    Attributes:
        ceilings: measured ceilings of the machine.
        peaks: TFLOP/s by the name of the arithmetic, including the peak of the ceilings.
    """

    ceilings: Ceilings
    peaks: Mapping[str, float]

    @classmethod
    def of(cls, ceilings: Ceilings, given: Mapping[str, float]) -> "Limits":
        """Return the limits of the ceilings with further peaks."""
        return cls(ceilings, {ceilings.tflops_how: ceilings.tflops, **given})

    def at(self, intensity: float) -> float:
        """Return the most TFLOP/s at an arithmetic intensity in FLOP per byte."""
        return min(intensity * self.ceilings.read_gbps / 1e3, max(self.peaks.values()))

    def share(self, cost: Cost, seconds: float) -> float:
        """Return the share of the limit that was reached."""
        return cost.tflops(seconds) / self.at(intensity(cost))


def intensity(cost: Cost) -> float:
    """Return the arithmetic intensity: operations per byte."""
    return cost.flops / cost.bytes


def named_peaks(options: Sequence[str]) -> dict[str, float]:
    """Parse options of the form `NAME=TFLOPS`.

    Raises:
        UsageError: if one has another form, or its number is not above 0.
    """
    peaks = {}
    for each in options:
        name, _, number = each.rpartition("=")
        try:
            tflops = float(number)
        except ValueError:
            tflops = math.nan
        if not name or not 0 < tflops < math.inf:
            raise UsageError(f"--peak: expected NAME=TFLOPS, such as 'bfloat16=0.4', got {each}")
        peaks[name] = tflops
    return peaks
