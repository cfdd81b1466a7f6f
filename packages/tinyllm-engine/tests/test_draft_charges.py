"""The time of draft tokens is charged to the tenants that get them."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from tinyllm_engine import Engine, EngineSettings, Request, RequestState
from tinyllm_engine import engine as engine_module
from tinyllm_engine.speculative import drafter
from tinyllm_engine.speculative.prompt_lookup import PromptLookup
from tinyllm_qwen import Qwen, Tokenizer

DRAFTING = 1.0


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_tenant_does_not_pay_for_the_drafts_of_another(
    pico: tuple[Qwen, Tokenizer],
    prompts: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    is_paused: bool,
) -> None:
    """The clock stands still except in `propose`. The other tenant prefills, or is paused."""
    now = 0.0
    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr(engine_module, "time", clock)
    engine = Engine(
        *pico,
        EngineSettings(num_speculative_tokens=2, max_num_batched_tokens=64 if is_paused else 2),
    )
    drafting = engine.add(Request(prompts[0], 40, tenant="drafts"))
    if is_paused:
        other = engine.add(Request(prompts[1], 40, tenant="other"))
    while drafting.is_prefilling or (is_paused and other.is_prefilling):
        engine.step()
    if not is_paused:
        other = engine.add(Request(prompts[6], 40, tenant="other"))
        engine.step()

    class Slow(PromptLookup):
        def propose(self, limits: Mapping[RequestState, int]) -> None:
            nonlocal now
            assert list(limits) == [drafting]
            now += DRAFTING
            super().propose(limits)

    engine._drafter = Slow()
    monkeypatch.setattr(drafter, "is_paused", lambda request: request is other)
    generated = other.generated
    engine.step()
    assert (other.generated == generated + 1) == is_paused
    assert engine._scheduler._time._virtual == {"drafts": DRAFTING, "other": 0.0}
