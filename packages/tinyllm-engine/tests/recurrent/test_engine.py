"""Each request to a model with recurrent layers gets what `generate` gives it alone."""

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import NoReturn

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from tinyllm_engine import Engine, EngineSettings, Request, RequestState
from tinyllm_engine.testing import DRAWN, GREEDY, KnownAnswers, Oracle, Tally, run_schedule
from tinyllm_layers import Batch, RecurrentPool
from tinyllm_qwen import Qwen, Tokenizer, generate

Model = tuple[Qwen, Tokenizer]
Prompts = list[list[int]]
SETTINGS = EngineSettings(8, kv_cache_memory_bytes=1 << 25)


def finish(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
    stats = engine.stats
    assert stats.pages_used == stats.states_used == stats.snapshots_used == 0


def answer(handle: RequestState) -> list[int]:
    return handle.tokens[len(handle.prompt) :]


def snapshots(engine: Engine) -> list[bytes]:
    """Return the block hashes of all snapshots; the snapshots to evict first come first."""
    assert engine._state_slots is not None
    return list(engine._state_slots.snapshots.registered)


@pytest.mark.usefixtures("unchecked")
def test_random_schedules_give_each_request_the_tokens_it_gets_alone(
    hybrid: Model, prompts: Prompts, answers: Oracle, tmp_path: Path
) -> None:
    tally = Tally()
    for seed in range(10):
        path = tmp_path / str(seed) if seed % 2 else None
        failures = 0.0 if seed % 3 else 0.05
        tally += run_schedule(
            *hybrid, prompts, answers, seed, failures=failures, prefix_cache_path=path
        )
    events = asdict(tally)
    assert events.pop("preemptions") > 0
    assert events.pop("restarts") == 5
    assert {name: count for name, count in events.items() if count < 10} == {}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("num_speculative_tokens", [0, 3])
@pytest.mark.parametrize("bits", [None, 8])
def test_logits_have_the_bits_of_generate_alone(
    hybrid: Model, prompts: Prompts, answers: Oracle, bits: int | None, num_speculative_tokens: int
) -> None:
    settings = replace(
        SETTINGS,
        kv_bits=bits,
        num_speculative_tokens=num_speculative_tokens,
        max_num_batched_tokens=50,
    )
    engine = Engine(*hybrid, settings)
    if num_speculative_tokens:
        engine._drafter = KnownAnswers(answers, random.Random(1))
    handles = [engine.add(Request(prompt, 12, logprobs=True)) for prompt in [*prompts, *prompts]]
    outputs = {handle: list(engine.run(handle)) for handle in handles}
    assert engine.stats.snapshot_hits > 10
    assert (engine.stats.accepted_tokens > 20) == bool(num_speculative_tokens)
    for handle, own in outputs.items():
        caches = hybrid[0].make_caches(kv_bits=bits)
        alone = list(generate(*hybrid, handle.prompt, max_tokens=12, caches=caches))
        assert [output.token for output in own] == [piece.token for piece in alone]
        assert [output.logprob for output in own] == [piece.logprob for piece in alone]


def test_equal_prompts_start_at_snapshots(hybrid: Model, prompts: Prompts) -> None:
    engine = Engine(*hybrid, SETTINGS)
    prompt = prompts[6]
    handles = [engine.add(Request(prompt, 4, replace(DRAWN, seed=seed))) for seed in range(4)]
    finish(engine)
    end = (len(prompt) - 1) // 8 * 8
    assert [handle.usage.cached_tokens for handle in handles] == [0, end, end, end]
    assert engine.stats.snapshot_hits == 3
    assert 0 < engine.stats.snapshots_held <= engine.stats.snapshots_total


def test_snapshots_have_a_limit_of_their_own(
    hybrid: Model, prompts: Prompts, answers: Oracle, caplog: pytest.LogCaptureFixture
) -> None:
    bytes_of_three = 3 * hybrid[0].state_bytes()
    engine = Engine(*hybrid, replace(SETTINGS, snapshot_memory_bytes=bytes_of_three))
    handles = [engine.add(Request(prompt, 5)) for prompt in [*prompts, *prompts]]
    finish(engine)
    assert engine.stats.snapshots_held == engine.stats.snapshots_total == 3
    assert engine.stats.snapshot_evictions > 3
    for handle in handles:
        assert answer(handle) == answers(handle.prompt, 5, GREEDY)
    assert not caplog.records
    none = Engine(*hybrid, replace(SETTINGS, snapshot_memory_bytes=0))
    assert "share no prefixes" in caplog.text
    for _ in range(2):
        handle = none.add(Request(prompts[6], 5))
        finish(none)
        assert handle.usage.cached_tokens == 0


def test_a_preempted_request_continues_at_a_snapshot(
    hybrid: Model, prompts: Prompts, answers: Oracle
) -> None:
    engine = Engine(*hybrid, SETTINGS)
    handle = engine.add(Request(prompts[6], 24, DRAWN))
    for _ in range(6):
        engine.step()
    engine._scheduler._preempt(handle)
    engine.step()
    assert handle.num_computed_tokens > len(prompts[6]) - 8
    finish(engine)
    assert engine.stats.snapshot_hits == 1
    assert answer(handle) == answers(prompts[6], 24, DRAWN)


def test_an_earlier_answer_in_a_prompt_is_prefilled(
    hybrid: Model, prompts: Prompts, answers: Oracle
) -> None:
    engine = Engine(*hybrid, SETTINGS)
    first = engine.add(Request(prompts[4], 20, ignore_end=True))
    finish(engine)
    continued = [*first.tokens, *prompts[0]]
    second = engine.add(Request(continued, 9))
    finish(engine)
    assert second.usage.cached_tokens <= len(prompts[4])
    assert answer(second) == answers(continued, 9, GREEDY)


def test_the_next_engine_loads_the_snapshots(
    hybrid: Model, prompts: Prompts, answers: Oracle, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, prefix_cache_path=tmp_path / "prefixes")
    first = Engine(*hybrid, settings)
    for prompt in prompts:
        first.add(Request(prompt, 3))
    finish(first)
    assert first.save_prefixes() == first.stats.pages_cached > 10
    second = Engine(*hybrid, settings)
    assert second.stats.snapshots_held == first.stats.snapshots_held > 5
    assert snapshots(second) == snapshots(first)
    for prompt in prompts:
        handle = second.add(Request(prompt, 9))
        finish(second)
        assert handle.usage.cached_tokens == (len(prompt) - 1) // 8 * 8
        assert answer(handle) == answers(prompt, 9, GREEDY)
    few = replace(settings, snapshot_memory_bytes=2 * hybrid[0].state_bytes())
    third = Engine(*hybrid, few)
    assert snapshots(third) == snapshots(first)[-2:]
    without = Engine(*hybrid, replace(settings, snapshot_memory_bytes=0))
    assert without.stats.pages_cached > without.stats.snapshots_held == 0


def test_a_file_of_the_format_before_is_ignored(
    hybrid: Model,
    prompts: Prompts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = replace(SETTINGS, prefix_cache_path=tmp_path / "prefixes")
    with monkeypatch.context() as patched:
        patched.setattr("tinyllm_engine.kv.prefix_store._FORMAT", "2")
        first = Engine(*hybrid, settings)
        first.add(Request(prompts[6], 3))
        finish(first)
        assert first.save_prefixes() > 0
    with caplog.at_level(logging.WARNING):
        second = Engine(*hybrid, settings)
    assert second.stats.pages_cached == second.stats.snapshots_held == 0
    assert "no prefixes were loaded" in caplog.text


def test_embeddings_do_not_depend_on_snapshots(hybrid: Model, prompts: Prompts) -> None:
    model, prompt = hybrid[0], prompts[6][:96]  # of whole pages: the last page is computed again
    h = model.hidden(
        mx.array([prompt]), Batch.at(0, 1, len(prompt), "prefill"), model.make_caches()
    )
    state = model.norm(h[0, -1])
    wanted = (state / mx.linalg.norm(state)).tolist()
    engine = Engine(*hybrid, replace(SETTINGS, max_num_batched_tokens=7))
    for hits in range(3):
        assert engine.embed(prompt) == pytest.approx(wanted, abs=1e-5)
        assert engine.stats.snapshot_hits == hits


def test_a_draft_model_has_no_recurrent_layers(
    hybrid: Model, pico: Model, prompts: Prompts, answers: Oracle
) -> None:
    settings = replace(SETTINGS, num_speculative_tokens=2)
    with pytest.raises(ValueError, match="draft_model: expected a model without recurrent layers"):
        Engine(*pico, settings, draft_model=hybrid[0])
    engine = Engine(*hybrid, settings, draft_model=pico[0])
    handles = [engine.add(Request(prompt, 9)) for prompt in prompts]
    finish(engine)
    assert engine.stats.draft_tokens > 0
    for handle in handles:
        assert answer(handle) == answers(handle.prompt, 9, GREEDY)


def test_other_models_have_no_slots(pico: Model, prompts: Prompts) -> None:
    engine = Engine(*pico, SETTINGS)
    assert engine._state_slots is None
    assert engine.stats.states_total == engine.stats.snapshots_total == 0
    handle = engine.add(Request(prompts[0], 2))
    engine.step()
    assert handle.slots is None


@pytest.mark.parametrize(
    ("method", "call", "before"),
    [("prefill", 1, False), ("prefill", 2, True), ("decode", 1, True), ("sample", 2, False)],
)
def test_ctrl_c_in_a_step_changes_no_answer(
    hybrid: Model,
    prompts: Prompts,
    answers: Oracle,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    call: int,
    before: bool,
) -> None:
    engine = Engine(*hybrid, replace(SETTINGS, max_num_batched_tokens=50))
    original, calls = getattr(engine._runner, method), count(1)

    def interrupted(*arguments: object) -> object:
        is_last = next(calls) == call
        if is_last and before:
            raise KeyboardInterrupt
        result = original(*arguments)
        if is_last:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(engine._runner, method, interrupted)
    request = Request(prompts[6], 16)
    first = engine.add(request)
    with pytest.raises(KeyboardInterrupt):
        finish(engine)
    finish(engine)
    again = engine.add(request)
    finish(engine)
    assert again.usage.cached_tokens > 0  # from snapshots of the first request
    expected = answers(prompts[6], 16, request.sampling)
    assert answer(first) == answer(again) == expected
    assert engine.stats.failed_steps == 0


def test_ctrl_c_ends_the_request_that_is_run(
    hybrid: Model, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(*hybrid, SETTINGS)
    handle = engine.add(Request(prompts[6], 16))
    outputs = engine.run(handle)
    next(outputs)
    monkeypatch.setattr(engine._runner, "decode", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(outputs)
    assert handle.finish_reason == "cancelled"
    assert not engine.has_work


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


class CountedAnswers(KnownAnswers):
    """A drafter that counts its draft tokens."""

    proposed = 0

    def propose(self, limits: Mapping[RequestState, int]) -> None:
        super().propose(limits)
        self.proposed += sum(len(request.draft_tokens) for request in limits)


@pytest.mark.parametrize("slots", [5, 8, 16])
def test_draft_tokens_without_a_slot_are_not_computed(
    hybrid: Model, prompts: Prompts, answers: Oracle, slots: int
) -> None:
    memory = 4 * slots * hybrid[0].state_bytes()
    engine = Engine(
        *hybrid, EngineSettings(8, kv_cache_memory_bytes=memory, num_speculative_tokens=3)
    )
    assert engine.stats.states_total == slots
    engine._drafter = drafter = CountedAnswers(answers, random.Random(1))
    for prompt in prompts[:4]:
        engine.add(Request(prompt, 12, ignore_end=True))
    finish(engine)
    assert drafter.proposed == engine.stats.draft_tokens > 0


def test_states_are_stored_once_no_running_kernel_reads_them(
    hybrid: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLX on a GPU would copy all slots, if the pass that loads states also stored them."""
    engine = Engine(*hybrid, SETTINGS)
    engine.add(Request(list(range(20)), 4))
    pools = [each for each in engine._runner._caches if isinstance(each, RecurrentPool)]
    evaluated: list[set[str]] = []

    def watched(evaluate: Callable[..., None]) -> Callable[..., None]:
        def call(*arrays: object) -> None:
            ids = {id(array) for pool in pools for array in pool.arrays}
            given = [id(item[1]) for item in tree_flatten(list(arrays))]
            evaluated.append({"state" if each in ids else "result" for each in given})
            evaluate(*arrays)

        return call

    monkeypatch.setattr(mx, "eval", watched(mx.eval))
    monkeypatch.setattr(mx, "async_eval", watched(mx.async_eval))
    finish(engine)
    assert {"state"} in evaluated
    assert {"state", "result"} not in evaluated
    assert evaluated.index({"result"}) < evaluated.index({"state"})
