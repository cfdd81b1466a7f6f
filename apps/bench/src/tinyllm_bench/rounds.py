"""Interleaved measurement: implementations take turns, so that a slow phase slows all of them.

A comparison measures several implementations on one case.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
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
    # Processor seconds of one call in the thread that builds its graphs, one number per sample.
    # Empty if they were not measured, as in child processes.
    host: tuple[float, ...] = ()

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

    name: str
    # Runs the work `calls` times and returns the seconds that it took. Preparation of the work is
    # not part of the time. Raises `PeerError` if the implementation fails.
    time: Callable[[int], float]
    # Returns the processor seconds of the calling thread in the last call of `time`: for a model
    # the time of Python and MLX, because other threads compute. None if it is not measured.
    host: Callable[[], float] | None = None


def timed(run: Callable[[int], object]) -> Callable[[int], float]:
    """Return a function that runs the work a number of times and returns the seconds."""

    def measure(calls: int) -> float:
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
    calls: int = 1
    cold: bool = False
    failure: str = ""
    seconds: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)

    def record(self, seconds: float) -> None:
        """Append a sample of `calls` calls, the last ones of the contender."""
        self.seconds.append(seconds / self.calls)
        if self.contender.host is not None:
            self.host.append(self.contender.host() / self.calls)


class Rounds:
    """Measures contenders round-robin. After Ctrl-C, `samples` holds the samples so far."""

    def __init__(self, contenders: Sequence[Contender], budget: Budget) -> None:
        """Store the contenders in their order."""
        self._turns = [_Turn(contender) for contender in contenders]
        self._budget = budget

    def run(self) -> None:
        """Take turns until the budget of every contender is spent."""
        waiting = [self._measure(turn) for turn in self._turns]
        while waiting:
            waiting = [steps for steps in waiting if next(steps, False)]

    @property
    def samples(self) -> dict[str, Samples]:
        """Samples so far by contender. A contender that failed or has no sample is left out."""
        return {
            turn.contender.name: Samples(
                tuple(turn.seconds), turn.calls, turn.cold, tuple(turn.host)
            )
            for turn in self._turns
            if turn.seconds and not turn.failure
        }

    @property
    def failures(self) -> dict[str, str]:
        """The reason of each failure, by contender."""
        return {turn.contender.name: turn.failure for turn in self._turns if turn.failure}

    def _measure(self, turn: _Turn) -> Iterator[bool]:
        """Measure a contender until it fails or its budget is spent. Yield True between turns.

        The first turn warms up with one call, and chooses the calls per sample with a second one.
        The first call counts only if it alone exceeds the budget.
        """
        budget, time_calls = self._budget, turn.contender.time
        try:
            first = time_calls(1)
            if first >= budget.seconds:
                turn.seconds, turn.cold = [first], True
                return
            second = time_calls(1)
            fitting = int(budget.sample_seconds / second) if second > 0 else budget.calls
            turn.calls = max(1, min(fitting, budget.calls))
            if turn.calls == 1:
                turn.record(second)
            left = budget.seconds - first - second
            while len(turn.seconds) < budget.samples:
                if turn.seconds and turn.seconds[-1] * turn.calls > left:
                    return
                yield True
                taken = time_calls(turn.calls)
                left -= taken
                turn.record(taken)
        except PeerError as error:
            turn.failure = str(error) or "failed"


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

    case: Case
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

    case: Case
    contenders: Sequence[Contender]
    # Cost of one call, by the name of the contender and the calls of a sample.
    cost: Callable[[str, int], Cost]
    budget: Budget

    def run(self, results: list[Result], failures: list[Failure]) -> None:
        """Measure, and append a result or failure for each contender, also after Ctrl-C."""
        rounds = Rounds(self.contenders, self.budget)
        try:
            rounds.run()
        finally:
            reference = rounds.samples.get(REFERENCE)
            failures += [Failure(self.case, *failure) for failure in rounds.failures.items()]
            for name, samples in rounds.samples.items():
                relative = None if reference is None else reference.median / samples.median
                cost = self.cost(name, samples.calls)
                results.append(Result(self.case, name, samples, cost, relative))
