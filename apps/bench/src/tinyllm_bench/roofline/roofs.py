"""The two slopes of a roofline: what memory allows, and what the units that multiply allow."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyllm_bench.ceilings import Ceilings
from tinyllm_bench.cost import Cost
from tinyllm_bench.errors import UsageError


@dataclass(frozen=True)
class Roofs:
    """The limits of Williams, Waterman and Patterson (2009).

    Attributes:
        ceilings: as measured here.
        peaks: trillions of operations a second by the name of an arithmetic, that of the ceilings
            among them.
    """

    ceilings: Ceilings
    peaks: Mapping[str, float]

    @classmethod
    def of(cls, ceilings: Ceilings, given: Mapping[str, float]) -> "Roofs":
        """Those of the ceilings, and others that were measured by other means."""
        return cls(ceilings, {ceilings.tflops_how: ceilings.tflops, **given})

    def at(self, intensity: float) -> float:
        """Trillions of operations a second that so many operations a byte allow at best."""
        return min(intensity * self.ceilings.read_gbps / 1e3, max(self.peaks.values()))

    def share(self, cost: Cost, seconds: float) -> float:
        """The part of the limit that was reached."""
        return cost.tflops(seconds) / self.at(intensity(cost))


def intensity(cost: Cost) -> float:
    """Operations for each byte that has to be moved."""
    return cost.flops / cost.bytes


def named_peaks(options: Sequence[str]) -> dict[str, float]:
    """Read `NAME=TFLOPS`, as often as it is given.

    Raises:
        UsageError: if one is not of that form, or its number is not above 0.
    """
    peaks = {}
    for option in options:
        name, _, number = option.rpartition("=")
        try:
            tflops = float(number)
        except ValueError:
            tflops = math.nan
        if not name or not 0 < tflops < math.inf:
            raise UsageError(f"--peak: expected NAME=TFLOPS, such as 'bfloat16=0.4', got {option}")
        peaks[name] = tflops
    return peaks
