"""Turns are taken in a fixed order, within the budget, on a clock that the tests turn."""

import pytest
from tinyllm_bench.rounds import Budget, Contender, Rounds


class Clock:
    """Time that passes only while somebody works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def contender(self, name: str, seconds: float, first: float | None = None) -> Contender:
        """Each call takes so long, the first one maybe longer."""
        calls_before: list[int] = []

        def run(calls: int) -> None:
            self.log.append(f"{name}{calls}")
            late = 0.0 if first is None or calls_before else first - seconds
            calls_before.append(calls)
            self.now += seconds * calls + late

        return Contender(name, run, lambda: self.log.append(f"({name})"))


def test_contenders_take_turns_and_prepare_before_each() -> None:
    clock = Clock()
    contenders = [clock.contender("a", 1.0), clock.contender("b", 2.0)]
    Rounds(contenders, Budget(100.0, samples=3), clock).run()
    warm_up = "(a) a1 (a) a1 (b) b1 (b) b1"
    assert " ".join(clock.log) == f"{warm_up} (a) a1 (b) b1 (a) a1 (b) b1"


def test_the_first_call_does_not_count() -> None:
    clock = Clock()
    rounds = Rounds([clock.contender("a", 1.0, first=5.0)], Budget(100.0, samples=4), clock)
    rounds.run()
    assert rounds.samples["a"].seconds == (1.0,) * 4
    assert not rounds.samples["a"].cold


def test_a_first_call_beyond_the_budget_is_the_only_sample() -> None:
    clock = Clock()
    contenders = [clock.contender("slow", 7.0), clock.contender("fast", 1.0)]
    rounds = Rounds(contenders, Budget(5.0), clock)
    rounds.run()
    assert rounds.samples["slow"].seconds == (7.0,)
    assert rounds.samples["slow"].cold
    assert rounds.samples["fast"].seconds == (1.0,) * 4  # with the first call, five seconds


def test_short_calls_share_a_sample() -> None:
    clock = Clock()
    contenders = [clock.contender("a", 2.0**-10), clock.contender("b", 2.0**-20)]
    rounds = Rounds(contenders, Budget(1.0, samples=5, sample_seconds=2.0**-7, calls=64), clock)
    rounds.run()
    assert {name: taken.calls for name, taken in rounds.samples.items()} == {"a": 8, "b": 64}
    assert rounds.samples["b"].seconds == (2.0**-20,) * 5  # of one call


def test_the_budget_ends_a_race() -> None:
    clock = Clock()
    Rounds([clock.contender("a", 0.25)], Budget(2.0, sample_seconds=0.1), clock).run()
    assert clock.now == 2.0


def test_an_interrupted_race_keeps_its_samples() -> None:
    clock = Clock()

    def interrupt(_calls: int) -> None:
        raise KeyboardInterrupt

    rounds = Rounds([clock.contender("a", 9.0), Contender("b", interrupt)], Budget(5.0), clock)
    with pytest.raises(KeyboardInterrupt):
        rounds.run()
    assert list(rounds.samples) == ["a"]
