"""Cases of a whole model: reading a prompt, then decoding token by token."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from tinyllm_bench.cost import ModelCosts
from tinyllm_bench.rounds import Budget, Case, Comparison, Contender, timed
from tinyllm_bench.settings import Settings

MODEL = "model"

# Multiple of an operation's time budget: a model has two cases, operations have dozens.
_BUDGET_SHARE = 10
# Enough for several tokens, because the graph of a token is built during the previous token.
_DECODE_SAMPLE_SECONDS = 0.1


@runtime_checkable
class Runner(Protocol):
    """A program that has loaded the model, with its own prompt and cache."""

    name: str
    costs: ModelCosts

    def time_prefill(self, times: int) -> float:
        """Return the seconds of reading the prompt `times` times."""

    def time_decode(self, tokens: int) -> float:
        """Return the seconds of decoding `tokens` tokens after the context."""


class LocalRunner(ABC):
    """A program that runs the model in this process."""

    # Processor seconds of this thread in the last measurement. Other threads compute.
    host_seconds: float = 0.0

    @abstractmethod
    def prefill(self) -> None:
        """Read the prompt into an empty cache, choose the first token and wait for it."""

    @abstractmethod
    def rewind(self) -> None:
        """Reset the cache to exactly the context, for `decode`."""

    @abstractmethod
    def decode(self, tokens: int) -> None:
        """Generate `tokens` tokens greedily, one after the other, after a `rewind`."""

    def time_prefill(self, times: int) -> float:
        """See `Runner`."""
        return self._timed(lambda count: [self.prefill() for _ in range(count)], times)

    def time_decode(self, tokens: int) -> float:
        """See `Runner`."""
        self.rewind()
        return self._timed(self.decode, tokens)

    def _timed(self, run: Callable[[int], object], count: int) -> float:
        begin = time.thread_time()
        seconds = timed(run)(count)
        self.host_seconds = time.thread_time() - begin
        return seconds


def prefill_comparison(runners: Sequence[Runner], settings: Settings) -> Comparison:
    """Compare the time from an empty cache to the first token."""
    tokens = settings.prompt_tokens
    costs = {runner.name: runner.costs for runner in runners}
    return Comparison(
        case=Case(MODEL, f"{tokens} tokens", "prefill", tokens),
        contenders=[_contender(runner, runner.time_prefill) for runner in runners],
        cost=lambda name, _calls: costs[name].prefill(tokens),
        budget=Budget(_BUDGET_SHARE * settings.seconds, calls=1),
    )


def decode_comparison(runners: Sequence[Runner], settings: Settings) -> Comparison:
    """Compare the time of a few tokens after the context. Each sample starts at the context.

    The cost is that of the mean token of a sample.
    """
    context = settings.context_tokens
    costs = {runner.name: runner.costs for runner in runners}
    return Comparison(
        case=Case(MODEL, f"after {context} tokens", "decode", 1),
        contenders=[_contender(runner, runner.time_decode) for runner in runners],
        cost=lambda name, calls: costs[name].decode(context + (calls + 1) // 2),
        budget=Budget(
            _BUDGET_SHARE * settings.seconds,
            sample_seconds=_DECODE_SAMPLE_SECONDS,
            calls=settings.decode_tokens,
        ),
    )


def _contender(runner: Runner, measure: Callable[[int], float]) -> Contender:
    """Return a runner as a contender, with the time of its thread if it has one in this process."""
    if not isinstance(runner, LocalRunner):
        return Contender(runner.name, measure)
    return Contender(runner.name, measure, lambda: runner.host_seconds)
