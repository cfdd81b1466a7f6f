"""A whole model: reading a prompt, then writing token by token."""

from collections.abc import Callable, Sequence

from tinyllm_bench.race import Race
from tinyllm_bench.rounds import Budget, Contender
from tinyllm_bench.runner import Runner
from tinyllm_bench.settings import Settings

MODEL = "model"

# Of one operation's time budget: there are two races here, and dozens there.
_SHARE = 10
_DECODE_SAMPLE = 0.1  # seconds: some tokens, so that one graph is built while another computes


def prefill_race(runners: Sequence[Runner], settings: Settings) -> Race:
    """From an empty cache to the first token."""
    costs = {runner.name: runner.prefill_cost() for runner in runners}
    return Race(
        what=MODEL,
        operand=f"{settings.prompt_tokens} tokens",
        regime="prefill",
        tokens=settings.prompt_tokens,
        contenders=[Contender(runner.name, _repeated(runner.prefill)) for runner in runners],
        cost=lambda name, _calls: costs[name],
        budget=Budget(_SHARE * settings.seconds, calls=1),
    )


def decode_race(runners: Sequence[Runner], settings: Settings) -> Race:
    """A few tokens after the context, again and again from the same place."""
    costs = {runner.name: runner.decode_cost for runner in runners}
    return Race(
        what=MODEL,
        operand=f"after {settings.keys_before} tokens",
        regime="decode",
        tokens=1,
        contenders=[Contender(runner.name, runner.decode, runner.rewind) for runner in runners],
        cost=lambda name, calls: costs[name](calls),
        budget=Budget(
            _SHARE * settings.seconds, sample_seconds=_DECODE_SAMPLE, calls=settings.decode_tokens
        ),
    )


def _repeated(work: Callable[[], None]) -> Callable[[int], None]:
    """Work that is done so many times."""

    def run(times: int) -> None:
        for _ in range(times):
            work()

    return run
