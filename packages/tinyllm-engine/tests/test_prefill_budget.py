"""The number of prompt tokens in a step."""

import pytest
from tinyllm_engine.schedule.prefill_budget import PrefillBudget


def test_a_step_takes_the_target_duration() -> None:
    budget = PrefillBudget(0.25, 4096)
    for _ in range(20):
        budget.observe(budget.tokens, budget.tokens / 2000)
    assert budget.tokens == 480  # 500 tokens, rounded down to whole tiles


def test_a_step_takes_longer_while_no_request_decodes() -> None:
    budget = PrefillBudget(0.25, 1024)
    budget.observe(128, 128 / 500)
    assert (budget.tokens, budget.tokens_alone) == (96, 480)  # 125 and 500 tokens, in whole tiles
    budget.observe(128, 128 / 100_000)
    assert budget.tokens_alone == 1024


@pytest.mark.parametrize(("rate", "tokens"), [(1, 32), (400, 96), (10_000, 200)])
def test_tokens_are_whole_tiles_between_the_limits(rate: float, tokens: int) -> None:
    budget = PrefillBudget(0.25, 200)
    assert budget.tokens == 128
    budget.observe(100, 100 / rate)
    assert budget.tokens == tokens


def test_a_single_slow_step_counts_little() -> None:
    budget = PrefillBudget(0.25, 4096)
    budget.observe(1000, 1.0)
    budget.observe(250, 1.0)  # a rate of 250, after 1,000
    assert budget.tokens == 192  # 0.25 s at 0.7 * 1,000 + 0.3 * 250, in whole tiles
