"""What one implementation took for one case."""

from dataclasses import dataclass

from tinyllm_bench.cost import Cost
from tinyllm_bench.samples import Samples


@dataclass(frozen=True)
class Result:
    """A row of the report.

    Attributes:
        what: name of an operation, or "model".
        operand: what it worked on, with its size.
        regime: "decode", "batch" or "prefill".
        tokens: computed by one call.
        by: who computed: an OpSet or a peer.
        samples: seconds of one call.
        cost: what one call cannot do without.
        relative: how many times as fast as the reference, None where that was not measured.
    """

    what: str
    operand: str
    regime: str
    tokens: int
    by: str
    samples: Samples
    cost: Cost
    relative: float | None

    @property
    def tokens_per_second(self) -> float:
        """At the median."""
        return self.tokens / self.samples.median
