"""Comparison of implementations on one case, and its results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinyllm_bench.cost import Cost
from tinyllm_bench.rounds import Budget, Contender, Rounds, Samples

REFERENCE = "reference"


@dataclass(frozen=True)
class Case:
    """Work that implementations are compared on."""

    what: str  # name of an operation or a layer, or "model"
    operand: str  # operand with its size
    regime: str  # "decode", "batch" or "prefill"
    tokens: int  # tokens computed by one call


@dataclass(frozen=True)
class Result:
    """Measurement of one implementation on one case."""

    case: Case  # the work
    by: str  # name of the implementation, an OpSet or a peer
    samples: Samples  # seconds of one call
    cost: Cost  # least bytes and operations of one call
    # Speed as a multiple of the reference's speed; None if the reference was not measured.
    relative: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second at the median."""
        return self.case.tokens / self.samples.median


@dataclass(frozen=True)
class Failure:
    """Failure of one implementation on one case, with its reason."""

    case: Case
    by: str
    reason: str


@dataclass(frozen=True)
class Comparison:
    """Contenders on one case."""

    case: Case  # the work
    contenders: Sequence[Contender]  # the implementations
    # Returns the cost of one call for the name of a contender and its calls per sample.
    cost: Callable[[str, int], Cost]
    budget: Budget  # limits of the measurement

    def run(self, results: list[Result], failures: list[Failure]) -> None:
        """Measure, and append a result or failure for each contender, also after Ctrl-C."""
        rounds = Rounds(self.contenders, self.budget)
        try:
            rounds.run()
        finally:
            reference = rounds.samples.get(REFERENCE)
            for name, samples in rounds.samples.items():
                relative = None if reference is None else reference.median / samples.median
                cost = self.cost(name, samples.calls)
                results.append(Result(self.case, name, samples, cost, relative))
            failures += [
                Failure(self.case, name, reason) for name, reason in rounds.failures.items()
            ]
