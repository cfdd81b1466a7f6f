"""Rounds: turns in a fixed order within the budget, on a simulated clock; statistics."""

import numpy as np
import pytest
from tinyllm_bench.errors import PeerError
from tinyllm_bench.rounds import Budget, Contender, Rounds, Samples, percentile


class Clock:
    """Time that passes only while a contender works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def contender(self, name: str, seconds: float, first: float | None = None) -> Contender:
        """Return a contender with `seconds` per call, and `first` seconds for the first call."""
        calls_before: list[int] = []

        def measure(calls: int) -> float:
            self.log.append(f"{name}{calls}")
            late = 0.0 if first is None or calls_before else first - seconds
            calls_before.append(calls)
            taken = seconds * calls + late
            self.now += taken
            return taken

        return Contender(name, measure)


def test_contenders_take_turns() -> None:
    clock = Clock()
    contenders = [clock.contender("a", 1.0), clock.contender("b", 2.0)]
    Rounds(contenders, Budget(100.0, samples=3)).run()
    assert " ".join(clock.log) == "a1 a1 b1 b1 a1 b1 a1 b1"


def test_the_time_of_the_host_is_measured_for_each_call() -> None:
    clock = Clock()
    measure = clock.contender("a", 0.5).time
    contenders = [Contender("a", measure, lambda: 3.0), Contender("b", measure)]
    rounds = Rounds(contenders, Budget(100.0, samples=4, sample_seconds=3.0))
    rounds.run()
    assert rounds.samples["a"].calls == 6
    assert rounds.samples["a"].host == (0.5,) * 4
    assert rounds.samples["b"].host == ()


def test_the_first_call_does_not_count() -> None:
    clock = Clock()
    rounds = Rounds([clock.contender("a", 1.0, first=5.0)], Budget(100.0, samples=4))
    rounds.run()
    assert rounds.samples["a"].seconds == (1.0,) * 4
    assert not rounds.samples["a"].cold


def test_a_first_call_beyond_the_budget_is_the_only_sample() -> None:
    clock = Clock()
    contenders = [clock.contender("slow", 7.0), clock.contender("fast", 1.0)]
    rounds = Rounds(contenders, Budget(5.0))
    rounds.run()
    assert rounds.samples["slow"].seconds == (7.0,)
    assert rounds.samples["slow"].cold
    assert rounds.samples["fast"].seconds == (1.0,) * 4  # with the first call, five seconds


def test_short_calls_share_a_sample() -> None:
    clock = Clock()
    contenders = [clock.contender("a", 2.0**-10), clock.contender("b", 2.0**-20)]
    rounds = Rounds(contenders, Budget(1.0, samples=5, sample_seconds=2.0**-7, calls=64))
    rounds.run()
    assert {name: taken.calls for name, taken in rounds.samples.items()} == {"a": 8, "b": 64}
    assert rounds.samples["b"].seconds == (2.0**-20,) * 5  # of one call


def test_the_budget_ends_the_rounds() -> None:
    clock = Clock()
    Rounds([clock.contender("a", 0.25)], Budget(2.0, sample_seconds=0.1)).run()
    assert clock.now == 2.0


def test_interrupted_rounds_keep_its_samples() -> None:
    clock = Clock()

    def interrupt(_calls: int) -> float:
        raise KeyboardInterrupt

    rounds = Rounds([clock.contender("a", 9.0), Contender("b", interrupt)], Budget(5.0))
    with pytest.raises(KeyboardInterrupt):
        rounds.run()
    assert list(rounds.samples) == ["a"]


@pytest.mark.parametrize("works", [0, 1, 3])
def test_a_contender_that_fails_has_a_reason_and_the_others_go_on(works: int) -> None:
    clock = Clock()
    calls = iter(range(works))

    def fail(count: int) -> float:
        if next(calls, None) is None:
            raise PeerError("out of order")
        return float(count)

    contenders = [clock.contender("a", 1.0), Contender("b", fail), clock.contender("c", 1.0)]
    rounds = Rounds(contenders, Budget(100.0, samples=5))
    rounds.run()
    assert rounds.failures == {"b": "out of order"}
    assert {name: len(taken.seconds) for name, taken in rounds.samples.items()} == {"a": 5, "c": 5}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 30])
def test_statistics_are_those_of_numpy(count: int) -> None:
    seconds = np.random.default_rng(count).random(count)
    samples = Samples(tuple(seconds.tolist()))
    low, middle, high = np.percentile(seconds, [25, 50, 75])
    assert samples.median == pytest.approx(middle)
    assert samples.quartiles == pytest.approx((low, high))
    assert samples.spread == pytest.approx((high - low) / middle)
    assert percentile(samples.seconds, 95) == pytest.approx(np.percentile(seconds, 95))


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="expected at least one sample, got none"):
        Samples(())
    assert percentile((), 50) == 0.0
