"""The number of prompt tokens in a step."""

import pytest
from tinyllm_engine.config import EngineSettings
from tinyllm_engine.schedule.prefill_budget import PrefillBudget
from tinyllm_qwen.config.experts import Experts


def settings(max_num_batched_tokens: int) -> EngineSettings:
    return EngineSettings(step_seconds=0.25, max_num_batched_tokens=max_num_batched_tokens)


def test_a_step_takes_the_target_duration() -> None:
    budget = PrefillBudget(settings(4096))
    for _ in range(20):
        budget.observe(budget.tokens, budget.tokens / 2000)
    assert budget.tokens == 480  # 500 tokens, rounded down to whole tiles


def test_a_step_takes_longer_while_no_request_decodes() -> None:
    budget = PrefillBudget(settings(1024))
    budget.observe(128, 128 / 500)
    assert (budget.tokens, budget.tokens_alone) == (96, 480)  # 125 and 500 tokens, in whole tiles
    budget.observe(128, 128 / 100_000)
    assert budget.tokens_alone == 1024


@pytest.mark.parametrize(("rate", "tokens"), [(1, 32), (400, 96), (10_000, 200)])
def test_tokens_are_whole_tiles_between_the_limits(rate: float, tokens: int) -> None:
    budget = PrefillBudget(settings(200))
    assert budget.tokens == 128
    budget.observe(100, 100 / rate)
    assert budget.tokens == tokens


@pytest.mark.parametrize(
    ("num_experts", "per_tok", "least"), [(128, 8, 64), (256, 8, 128), (512, 10, 192), (4, 2, 32)]
)
def test_each_expert_computes_several_rows(num_experts: int, per_tok: int, least: int) -> None:
    experts = Experts(
        num_experts=num_experts,
        num_experts_per_tok=per_tok,
        intermediate_size=768,
        norm_topk_prob=True,
        layers=frozenset({0}),
    )
    for max_tokens in (512, 48):
        budget = PrefillBudget(settings(max_tokens), experts)
        budget.observe(128, 10.0)
        assert budget.tokens == budget.tokens_alone == min(least, max_tokens)


def test_a_single_slow_step_counts_little() -> None:
    budget = PrefillBudget(settings(4096))
    budget.observe(1000, 1.0)
    budget.observe(250, 1.0)  # a rate of 250, after 1,000
    assert budget.tokens == 192  # 0.25 s at 0.7 * 1,000 + 0.3 * 250, in whole tiles


def test_passes_of_one_token_are_not_measured() -> None:
    budget = PrefillBudget(settings(4096))

    def observe(tokens: int) -> None:
        budget.observe(tokens, 0.01 + tokens / 2000)  # reading the weights takes 10 ms

    for _ in range(20):
        observe(budget.tokens)
    steady = budget.tokens
    for _ in range(12):
        observe(1)  # the last token of a prompt that is in the prefix cache
    assert budget.tokens == steady > 400
