"""Taking turns, so that a machine that gets slower or faster does so for all alike."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tinyllm_bench.samples import Samples


@dataclass(frozen=True)
class Contender:
    """One implementation of what is measured.

    Attributes:
        name: what to call it.
        run: does the work so many times, and waits until it is done.
        prepare: called before each sample, outside the measured time.
    """

    name: str
    run: Callable[[int], None]
    prepare: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Budget:
    """When to end.

    Attributes:
        seconds: of each contender; a call that is under way is never cut off.
        samples: of each contender at most.
        sample_seconds: how long one sample should take, where several calls fit into it: clocks
            and waiting have a cost of their own, which many calls share.
        calls: of one sample at most.
    """

    seconds: float
    samples: int = 30
    sample_seconds: float = 0.005
    calls: int = 256


@dataclass
class _Turn:
    """A contender in the race: what it has used and what it has shown."""

    contender: Contender
    spent: float = 0.0
    calls: int = 1
    cold: bool = False
    done: bool = False
    seconds: list[float] = field(default_factory=list)


class Rounds:
    """Measure contenders round robin; after an interruption `samples` holds what there is."""

    def __init__(
        self,
        contenders: Sequence[Contender],
        budget: Budget,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Line the contenders up."""
        self._turns = [_Turn(contender) for contender in contenders]
        self._budget = budget
        self._clock = clock

    def run(self) -> None:
        """Warm up, find out how many calls make a sample, then go round until all are done."""
        for turn in self._turns:
            self._warm_up(turn)
        while any(not turn.done for turn in self._turns):
            for turn in self._turns:
                if not turn.done:
                    self._sample(turn)

    @property
    def samples(self) -> dict[str, Samples]:
        """What was measured so far, by contender; those without a sample are left out."""
        return {
            turn.contender.name: Samples(tuple(turn.seconds), turn.calls, turn.cold)
            for turn in self._turns
            if turn.seconds
        }

    def _warm_up(self, turn: _Turn) -> None:
        """A first call that does not count, unless nothing else fits; a second to be judged by."""
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
        """One more sample, or the end of the contender's turns."""
        budget = self._budget
        full = len(turn.seconds) >= budget.samples
        if full or (turn.seconds and turn.spent + turn.seconds[-1] * turn.calls > budget.seconds):
            turn.done = True
            return
        turn.seconds.append(self._time(turn, turn.calls) / turn.calls)

    def _time(self, turn: _Turn, calls: int) -> float:
        turn.contender.prepare()
        start = self._clock()
        turn.contender.run(calls)
        taken = self._clock() - start
        turn.spent += taken
        return taken
