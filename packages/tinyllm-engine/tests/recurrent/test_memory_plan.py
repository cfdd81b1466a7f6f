"""The memory of an engine is divided between pages, states of requests, and snapshots."""

import pytest
from tinyllm_engine import EngineSettings
from tinyllm_engine.kv.memory_plan import MemoryPlan, MemorySettingError, plan_memory


def settings(memory: int | None, **rest: int | bool) -> EngineSettings:
    return EngineSettings(8, kv_cache_memory_bytes=memory, **rest)  # type: ignore[arg-type]  # by name


def test_without_recurrent_layers_pages_take_all_memory() -> None:
    assert plan_memory(settings(1050), 10, 0, 99) == MemoryPlan(105)


def test_states_and_snapshots_take_a_quarter_each_at_most() -> None:
    assert plan_memory(settings(4000), 10, 100, 99) == MemoryPlan(200, 10, 10)
    assert plan_memory(settings(4000, max_num_seqs=3), 10, 100, 99) == MemoryPlan(270, 3, 10)
    two = settings(4000, max_num_seqs=2, num_speculative_tokens=4)
    assert plan_memory(two, 10, 100, 99) == MemoryPlan(200, 10, 10)


def test_a_request_with_its_draft_tokens_always_has_slots() -> None:
    assert plan_memory(settings(1000, num_speculative_tokens=6), 10, 100, 99) == MemoryPlan(
        10, 7, 2
    )
    assert plan_memory(settings(710, num_speculative_tokens=6), 10, 100, 99) == MemoryPlan(1, 7, 0)
    with pytest.raises(
        MemorySettingError, match=r"^kv_cache_memory_bytes: .* got 709: give more$"
    ) as caught:
        plan_memory(settings(709, num_speculative_tokens=6), 10, 100, 99)
    assert (caught.value.least, caught.value.most) == (710, None)
    assert caught.value.contents == "one page of 8 tokens and 7 recurrent states"
    text = (
        "kv_cache_memory_bytes: expected at least 10 bytes for one page of 8 tokens, got 9: "
        "give more"
    )
    with pytest.raises(MemorySettingError, match=text):
        plan_memory(settings(9), 10, 0, 99)


def test_a_large_page_leaves_less_for_states() -> None:
    assert plan_memory(settings(1000), 850, 50, 99) == MemoryPlan(1, 3, 0)
    with pytest.raises(ValueError, match="one attention layer or more, got none: use `generate`"):
        plan_memory(settings(1000), 0, 50, 99)


def test_the_memory_for_snapshots_is_chosen() -> None:
    chosen = settings(4000, snapshot_memory_bytes=2500)
    assert plan_memory(chosen, 10, 100, 99) == MemoryPlan(50, 10, 25)
    assert plan_memory(settings(4000, snapshot_memory_bytes=0), 10, 100, 99).num_snapshots == 0
    assert plan_memory(settings(4000, enable_prefix_caching=False), 10, 100, 99).num_snapshots == 0
    for wrong in (99, 2991):
        with pytest.raises(MemorySettingError, match=f"expected 0, or from 100 to 2990 .* {wrong}"):
            plan_memory(settings(4000, snapshot_memory_bytes=wrong), 10, 100, 99)
    with pytest.raises(ValueError, match="snapshot_memory_bytes: expected at least 0, got -1"):
        settings(4000, snapshot_memory_bytes=-1)


def test_by_default_all_requests_have_pages_and_states() -> None:
    # 32 requests of 13 pages: half of the memory for pages, or four times the states.
    assert plan_memory(settings(None), 10, 10, 99) == MemoryPlan(592, 32, 208)
    assert plan_memory(settings(None), 10, 100, 99) == MemoryPlan(640, 32, 32)
    plan = plan_memory(settings(None, num_speculative_tokens=3), 10, 100, 99)
    assert plan == MemoryPlan(2560, 128, 128)


def test_more_than_the_free_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinyllm_engine.kv.memory_plan.free_memory", lambda: 16_000)
    text = "kv_cache_memory_bytes: expected at most 15000 bytes .* got 15001: give less"
    with pytest.raises(MemorySettingError, match=text) as caught:
        plan_memory(EngineSettings(8, kv_cache_memory_bytes=15_001), 10, 0, 99)
    assert (caught.value.least, caught.value.most) == (10, 15_000)
    assert plan_memory(EngineSettings(8, kv_cache_memory_bytes=15_000), 10, 0, 99).num_pages == 1500
    assert plan_memory(EngineSettings(8), 10, 0, 9999).num_pages == 800


def test_the_default_holds_a_prompt_within_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has 8 tokens, so that the least is 128 pages of 10 bytes, and the states."""
    free = 16_000
    monkeypatch.setattr("tinyllm_engine.kv.memory_plan.free_memory", lambda: free)
    many = settings(None, num_speculative_tokens=130)
    assert plan_memory(many, 10, 100, 9999) == MemoryPlan(128, 131, 0)
    assert plan_memory(many, 10, 100, 99).num_pages >= 13
    text = "kv_cache_memory_bytes: expected at least 15080 bytes for 1024 tokens and 138 recurrent"
    with pytest.raises(MemorySettingError, match=f"{text} states, got 15000: give more") as caught:
        plan_memory(settings(None, num_speculative_tokens=137), 10, 100, 9999)
    assert (caught.value.least, caught.value.most) == (15_080, None)
    free = 1_300
    with pytest.raises(MemorySettingError, match="at least 1280 bytes for 1024 tokens, got 1219"):
        plan_memory(EngineSettings(8), 10, 0, 9999)
    free = 160
    assert plan_memory(EngineSettings(8), 10, 0, 64).num_pages == 8
