"""A draft model changes the speed of decoding, and no token."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_engine import Engine, EngineSettings, Grammar, Request, RequestState
from tinyllm_engine.kv.page_pool import PagePool
from tinyllm_engine.speculative import drafter
from tinyllm_engine.speculative.draft_progress import DraftProgress
from tinyllm_engine.testing import Oracle, run_schedule, state_without_model
from tinyllm_ops.testing import assert_close, exact
from tinyllm_qwen import Qwen, SamplingParams, Tokenizer
from tinyllm_qwen.checkpoint.schema import expected_shapes

pytestmark = pytest.mark.exhaustive

Model = tuple[Qwen, Tokenizer]


def noise(pico: Model, **fields: Any) -> Qwen:
    """Return a model of one layer with random weights, whose draft tokens are wrong."""
    config = replace(pico[0].config, num_hidden_layers=1, **fields)
    mx.random.seed(1)
    shapes = expected_shapes(config).items()
    weights = {name: 0.1 * mx.random.normal(shape) for name, shape in shapes}
    return Qwen(config, weights, ops=pico[0].ops)


def answer(handle: RequestState) -> list[int]:
    return handle.tokens[len(handle.prompt) :]


def finish(engine: Engine) -> int:
    """Return the number of steps taken."""
    steps = 0
    while engine.has_work:
        engine.step()
        steps += 1
    return steps


def assert_pages_are_alike(engine: Engine, request: RequestState) -> None:
    """Check that the draft model, which is the model itself, has the same keys and values."""
    length = engine._drafter._progress.computed(request)
    pages = mx.array(request.block_table, dtype=mx.int32)
    for own, draft in zip(engine._runner._caches, engine._drafter._runner._caches, strict=True):
        for expected, actual in ((own.keys, draft.keys), (own.values, draft.values)):
            rows = [
                each[pages].swapaxes(1, 2).flatten(0, 1)[:length] for each in (actual, expected)
            ]
            assert_close(rows[0], exact(rows[1]), position=length)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_any_draft_leaves_the_tokens_of_a_request_alone(
    pico: Model, prompts: list[list[int]], generated: Oracle, seed: int, is_right: bool
) -> None:
    draft_model = pico[0] if is_right else noise(pico)
    tally = run_schedule(*pico, prompts, generated, seed, draft_model=draft_model, requests=8)
    assert tally.num_draft_tokens > 0


def test_a_model_that_drafts_for_itself_is_always_accepted(
    pico: Model, prompts: list[list[int]]
) -> None:
    """A wrong key, in a batch, a shared page or after a preemption, would reject a draft token."""
    page = PagePool(pico[0], EngineSettings(4, kv_cache_memory_bytes=1 << 24), pico[0]).page_bytes
    longest = -(-(max(map(len, prompts)) + 30) // 4)
    settings = EngineSettings(4, kv_cache_memory_bytes=page * 2 * longest, num_speculative_tokens=4)
    engine = Engine(*pico, settings, draft_model=pico[0])
    for again in (False, True):
        for prompt in prompts:
            engine.add(Request(prompt, 26, ignore_end=True))
        finish(engine)
        assert engine.stats.cached_tokens > 0 or not again
    assert engine.stats.preemptions > 0
    assert engine.stats.draft_tokens == engine.stats.accepted_tokens > 0


def test_five_tokens_come_in_a_step_and_none_is_computed_twice(
    pico: Model, prompts: list[list[int]]
) -> None:
    engine = Engine(*pico, EngineSettings(num_speculative_tokens=4), draft_model=pico[0])
    handles = [engine.add(Request(prompt, 50, ignore_end=True)) for prompt in prompts[:3]]
    progress = engine._drafter._progress
    for _ in range(12):
        engine.step()
        running = [handle for handle in handles if handle.finish_reason is None]
        assert all(
            progress.computed(request) >= request.num_computed_tokens - 1 for request in running
        )
    assert not engine.has_work


def test_a_page_that_is_copied_is_copied_for_both(pico: Model, prompts: list[list[int]]) -> None:
    engine = Engine(*pico, EngineSettings(32, num_speculative_tokens=4), draft_model=pico[0])
    prompt = prompts[9]
    assert len(prompt) == 64
    engine.add(Request(prompt, 1))
    finish(engine)
    handle = engine.add(Request(prompt, 40, ignore_end=True))
    engine.step()
    assert handle.usage.cached_tokens == 63
    assert engine._drafter._progress.computed(handle) == 64
    assert_pages_are_alike(engine, handle)
    finish(engine)
    assert engine.stats.draft_tokens == engine.stats.accepted_tokens > 0


def test_missing_pages_are_computed_before_the_draft_model_proposes(
    pico: Model, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EngineSettings(4, num_speculative_tokens=3, max_num_batched_tokens=16)
    engine = Engine(*pico, settings, draft_model=pico[0])
    with monkeypatch.context() as paused:
        paused.setattr(drafter, "is_paused", lambda _: True)
        first = engine.add(Request(prompts[0], 60, ignore_end=True))
        finish(engine)
    assert engine.stats.draft_tokens == 0
    text = list(first.tokens)
    handles = [
        engine.add(Request([*text, *more], 20, ignore_end=True)) for more in ([5], prompts[1])
    ]
    for _ in range(7):
        engine.step()
        for handle in handles:
            if handle.block_table:
                assert_pages_are_alike(engine, handle)
    assert all(engine._drafter._progress.computed(h) > len(text) for h in handles)
    finish(engine)
    assert all(handle.usage.cached_tokens >= len(text) // 4 * 4 - 4 for handle in handles)
    assert engine.stats.draft_tokens == engine.stats.accepted_tokens > 0


def test_the_draft_model_computes_only_prompts_that_it_will_continue(
    pico: Model, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(
        *pico,
        EngineSettings(num_speculative_tokens=2, enable_prefix_caching=False),
        draft_model=pico[0],
    )
    prefill, passes = engine._drafter._runner.prefill, list[tuple[int, int]]()

    def record(chunks: Any) -> object:
        passes.extend((len(each.tokens), each.num_scores) for each in chunks)
        return prefill(chunks)

    monkeypatch.setattr(engine._drafter._runner, "prefill", record)
    engine.add(Request(prompts[0], 0, prompt_logprobs=True))
    engine.add(Request(prompts[1], embedding=True))
    finish(engine)
    assert not passes
    scored = engine.add(Request(prompts[2], 4, prompt_logprobs=True))
    finish(engine)
    assert passes == [(len(prompts[2]), 0)]
    assert all(each is not None for each in scored.prompt_logprobs[1:])


def test_rejected_drafts_pause_speculation(pico: Model, prompts: list[list[int]]) -> None:
    engine = Engine(*pico, EngineSettings(num_speculative_tokens=4), draft_model=noise(pico))
    engine.add(Request(prompts[0], 100, ignore_end=True))
    finish(engine)
    assert 0 < engine.stats.draft_tokens < 100


def test_drafts_keep_to_the_grammar(pico: Model, prompts: list[list[int]]) -> None:
    grammar = Grammar.regex("(norm|rope){4}x{6}")
    request = Request(prompts[0], 60, SamplingParams(temperature=1.0, seed=2), grammar=grammar)
    alone = Engine(*pico)
    wanted = alone.add(request)
    finish(alone)
    engine = Engine(*pico, EngineSettings(num_speculative_tokens=4), draft_model=pico[0])
    handle = engine.add(request)
    finish(engine)
    assert answer(handle) == answer(wanted)


def test_ids_unknown_to_the_draft_model_end_the_drafts_of_one_request(
    pico: Model, prompts: list[list[int]]
) -> None:
    padded = noise(pico, vocab_size=pico[0].config.vocab_size + 8)
    prompt = [*prompts[0], padded.config.vocab_size - 2, 5]
    engine = Engine(padded, pico[1], EngineSettings(num_speculative_tokens=2), draft_model=pico[0])
    handles = [engine.add(Request(each, 9, ignore_end=True)) for each in (prompt, prompts[0])]
    for _ in range(3):
        engine.step()
    reached = [engine._drafter._progress.computed(handle) for handle in handles]
    assert reached[0] == 0 < reached[1]
    finish(engine)


def test_a_draft_model_of_another_vocabulary_is_refused(pico: Model) -> None:
    settings = EngineSettings(num_speculative_tokens=2)
    with pytest.raises(ValueError, match="draft_model: expected a model of the same tokenizer"):
        Engine(*pico, settings, draft_model=noise(pico, vocab_size=pico[1].vocab_size - 1))
    with pytest.raises(ValueError, match="num_speculative_tokens: expected at least 1"):
        Engine(*pico, draft_model=pico[0])


def test_both_models_share_the_memory(pico: Model) -> None:
    settings = EngineSettings(8, kv_cache_memory_bytes=1 << 22, num_speculative_tokens=1)
    alone, both = PagePool(pico[0], settings), PagePool(pico[0], settings, pico[0])
    assert both.page_bytes == 2 * alone.page_bytes
    nbytes = sum(cache.nbytes for cache in (*both.caches, *both.draft_caches))
    assert nbytes == both.num_pages * both.page_bytes <= 1 << 22


def test_draft_progress_ends_at_the_first_gap() -> None:
    progress = DraftProgress(num_pages=4, page_size=4)
    request = state_without_model(Request([1] * 12))
    request.num_computed_tokens, request.block_table = 10, [2, 0, 3]
    assert progress.computed(request) == 0
    progress.extend(request, 0, 10)
    assert progress.computed(request) == 10
    progress.copy(0, 1)
    progress.cut(request, 6, 9)
    assert progress.computed(request) == 6
    request.block_table[1] = 1
    assert progress.computed(request) == 8
    progress.reset()
    assert progress.computed(request) == 0


@pytest.mark.parametrize("length", [24, 40])
def test_requests_that_share_pages_catch_up_once(pico: Model, length: int) -> None:
    """Two requests share pages with tokens that the draft model has not computed."""
    model, tokenizer = pico
    settings = EngineSettings(page_size=8, kv_cache_memory_bytes=1 << 22, num_speculative_tokens=3)
    engine = Engine(model, tokenizer, settings, draft_model=noise(pico))
    sampling = SamplingParams(temperature=8.0, seed=0)  # drafts are rejected, then paused
    prompt = tokenizer.encode("what does rmsnorm do?")
    first = engine.add(Request(prompt, length, sampling, ignore_end=True))
    finish(engine)
    continued = [
        engine.add(Request([*first.tokens, *tokenizer.encode(text)], 8))
        for text in (" why, in a few words", " how, in a few words")
    ]
    finish(engine)
    assert engine.stats.failed_steps == 0
    oracle = Oracle(model, tokenizer)
    for handle in continued:
        assert answer(handle) == oracle(handle.prompt, 8, SamplingParams())
