"""One case, and everybody who takes part in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinyllm_bench.cost import Cost
from tinyllm_bench.result import Result
from tinyllm_bench.rounds import Budget, Contender, Rounds

REFERENCE = "reference"


@dataclass(frozen=True)
class Race:
    """What is measured against one another.

    Attributes:
        what: name of an operation, or "model".
        operand: what it works on, with its size.
        regime: "decode", "batch" or "prefill".
        tokens: computed by one call.
        contenders: who takes part.
        cost: of one call, by contender and the calls of a sample.
        budget: when to end.
    """

    what: str
    operand: str
    regime: str
    tokens: int
    contenders: Sequence[Contender]
    cost: Callable[[str, int], Cost]
    budget: Budget

    def run(self, results: list[Result]) -> None:
        """Append a row for each contender, also for what Ctrl-C leaves of the race."""
        rounds = Rounds(self.contenders, self.budget)
        try:
            rounds.run()
        finally:
            samples = rounds.samples
            reference = samples.get(REFERENCE)
            for name, taken in samples.items():
                results.append(
                    Result(
                        what=self.what,
                        operand=self.operand,
                        regime=self.regime,
                        tokens=self.tokens,
                        by=name,
                        samples=taken,
                        cost=self.cost(name, taken.calls),
                        relative=None if reference is None else reference.median / taken.median,
                    )
                )
