"""Interleaved measurement: implementations take turns, so that a slow phase slows all of them.

A comparison measures several implementations on one case.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tinyllm_bench.cost import Cost
from tinyllm_bench.errors import PeerError

REFERENCE = "reference"


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile, interpolated linearly, or 0 without values."""
    return float(np.percentile(values, percent)) if values else 0.0


@dataclass(frozen=True)
class Samples:
    """Times of one call, measured several times. Raise `ValueError` if there are no samples."""

    seconds: tuple[float, ...]  # one number per sample, in the order of measurement
    calls: int = 1  # calls per sample. A sample is the mean over its calls.
    # True if the only sample is the first call, because the first call alone exceeded the time
    # budget. A first call includes one-time costs such as page faults.
    cold: bool = False

    def __post_init__(self) -> None:
        """Check that there is a sample."""
        if not self.seconds:
            raise ValueError("seconds: expected at least one sample, got none")

    @property
    def median(self) -> float:
        """Median of the samples."""
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile, interpolated."""
        return percentile(self.seconds, 25), percentile(self.seconds, 75)

    @property
    def spread(self) -> float:
        """Interquartile range as a share of the median."""
        low, high = self.quartiles
        return (high - low) / self.median if self.median else 0.0


@dataclass(frozen=True)
class Contender:
    """One implementation that takes part in a comparison."""

    name: str  # name of the implementation
    # Runs the work `calls` times and returns the seconds that it took. Preparation of the work is
    # not part of the time. Raises `PeerError` if the implementation fails.
    time: Callable[[int], float]


def timed(
    run: Callable[[int], object], prepare: Callable[[], object] = lambda: None
) -> Callable[[int], float]:
    """Return a function that prepares, runs the work a number of times and returns the seconds."""

    def measure(calls: int) -> float:
        prepare()
        start = time.perf_counter()
        run(calls)
        return time.perf_counter() - start

    return measure


@dataclass(frozen=True)
class Budget:
    """Limits of a measurement."""

    seconds: float  # time for each contender. A running call is never interrupted.
    samples: int = 30  # most samples of each contender
    # Target duration of one sample, if several calls fit. Many calls share the cost of reading the
    # clock and of waiting.
    sample_seconds: float = 0.005
    calls: int = 256  # most calls in one sample


@dataclass
class _Turn:
    """Progress of one contender."""

    contender: Contender
    spent: float = 0.0
    calls: int = 1
    cold: bool = False
    done: bool = False
    failure: str | None = None
    seconds: list[float] = field(default_factory=list)


class Rounds:
    """Measures contenders round-robin. After Ctrl-C, `samples` holds the samples so far."""

    def __init__(self, contenders: Sequence[Contender], budget: Budget) -> None:
        """Store the contenders in their order."""
        self._turns = [_Turn(contender) for contender in contenders]
        self._budget = budget

    def run(self) -> None:
        """Warm up, choose the calls per sample, and take turns until every budget is spent."""
        for turn in self._turns:
            self._attempt(turn, self._warm_up)
        while any(not turn.done for turn in self._turns):
            for turn in self._turns:
                if not turn.done:
                    self._attempt(turn, self._sample)

    @property
    def samples(self) -> dict[str, Samples]:
        """Samples so far by contender. A contender that failed or has no sample is left out."""
        return {
            turn.contender.name: Samples(tuple(turn.seconds), turn.calls, turn.cold)
            for turn in self._turns
            if turn.seconds and turn.failure is None
        }

    @property
    def failures(self) -> dict[str, str]:
        """The reason of each failure, by contender."""
        return {
            turn.contender.name: turn.failure for turn in self._turns if turn.failure is not None
        }

    def _attempt(self, turn: _Turn, step: Callable[[_Turn], None]) -> None:
        """Run a step of a turn. A contender that fails is done; the other contenders continue."""
        try:
            step(turn)
        except PeerError as error:
            turn.failure, turn.done = str(error), True

    def _warm_up(self, turn: _Turn) -> None:
        """Make a first call to warm up, and a second one to choose the calls per sample.

        The first call is a sample only if that call alone exceeds the budget.
        """
        budget = self._budget
        first = self._time(turn, 1)
        if first >= budget.seconds:
            turn.seconds.append(first)
            turn.cold = turn.done = True
            return
        second = self._time(turn, 1)
        fitting = int(budget.sample_seconds / second) if second > 0 else budget.calls
        turn.calls = max(1, min(fitting, budget.calls))
        if turn.calls == 1:
            turn.seconds.append(second)

    def _sample(self, turn: _Turn) -> None:
        """Take one more sample, unless the budget is spent."""
        budget = self._budget
        full = len(turn.seconds) >= budget.samples
        if full or (turn.seconds and turn.spent + turn.seconds[-1] * turn.calls > budget.seconds):
            turn.done = True
            return
        turn.seconds.append(self._time(turn, turn.calls) / turn.calls)

    def _time(self, turn: _Turn, calls: int) -> float:
        seconds = turn.contender.time(calls)
        turn.spent += seconds
        return seconds


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
