"""Each request gets the tokens that `generate` gives it alone."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_engine import (
    Engine,
    EngineFullError,
    EngineSettings,
    Output,
    Request,
    RequestError,
    RequestState,
)
from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.testing import DRAWN, GREEDY, Oracle, Tally, pages_of, run_schedule
from tinyllm_layers import Batch, LayerCache
from tinyllm_qwen import Qwen, SamplingParams, Tokenizer, generate, load

Model = tuple[Qwen, Tokenizer]
SEEDS = [*range(12), 15, 25, 39, 61, 67]  # the last five preempt requests in a small memory


def finish(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def answer(handle: RequestState) -> list[int]:
    return handle.tokens[len(handle.prompt) :]


@pytest.fixture(scope="module")
def tally_of(pico: Model, prompts: list[list[int]], generated: Oracle) -> Callable[[int], Tally]:
    """Return a function that runs the random schedule of a seed once and counts its events."""
    return cache(lambda seed: run_schedule(*pico, prompts, generated, seed))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedules_give_each_request_the_tokens_it_gets_alone(
    tally_of: Callable[[int], Tally], seed: int
) -> None:
    tally = tally_of(seed)
    # Every request that runs to its end has a token.
    assert tally.tokens >= tally.requests - tally.cancelled > 0


@pytest.mark.usefixtures("unchecked")
def test_the_random_schedules_reach_every_event(tally_of: Callable[[int], Tally]) -> None:
    tallies = [tally_of(seed) for seed in SEEDS]
    events = asdict(sum(tallies, Tally()))
    assert events.pop("failures") == events.pop("restarts") == 0
    assert events.pop("snapshot_hits") == events.pop("snapshot_evictions") == 0
    assert {name: count for name, count in events.items() if count < 10} == {}


def test_run_schedule_reports_wrong_tokens_and_lost_pages(
    pico: Model, prompts: list[list[int]], generated: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(Oracle):
        def __call__(self, *asked: Any) -> list[int]:
            return [0, *super().__call__(*asked)[1:]]

    with pytest.raises(AssertionError, match=r"seed 0, Request.*: expected \[0"):
        run_schedule(*pico, prompts, Wrong(*pico), 0)
    monkeypatch.setattr(BlockManager, "free", lambda *_: None)
    with pytest.raises(AssertionError, match="seed 5: expected nothing left behind"):
        run_schedule(*pico, prompts, generated, 5, requests=1)


def test_preemptions_in_a_small_memory_lose_nothing(
    pico: Model, prompts: list[list[int]], generated: Oracle
) -> None:
    settings = EngineSettings(page_size=4, kv_cache_memory_bytes=pages_of(pico[0], 16, 4))
    engine = Engine(*pico, settings)
    handles = [engine.add(Request(prompt, 24, DRAWN)) for prompt in prompts[:6]]
    finish(engine)
    assert engine.stats.preemptions > 0
    for handle in handles:
        assert answer(handle) == generated(handle.prompt, 24, DRAWN)


def test_prompt_lookup_saves_steps_and_changes_no_token(
    pico: Model, prompts: list[list[int]]
) -> None:
    prompt = prompts[0] * 6
    sampling = SamplingParams(repetition_penalty=0.6)  # favors tokens of the text
    alone = [piece.token for piece in generate(*pico, prompt, max_tokens=60, sampling=sampling)]
    engine = Engine(*pico, EngineSettings(num_speculative_tokens=4))
    handles = [engine.add(Request(prompt, 60, sampling)) for _ in range(3)]
    steps = 0
    while engine.has_work:
        engine.step()
        steps += 1
    assert [answer(handle) for handle in handles] == [alone] * 3
    assert engine.stats.accepted_tokens > 0
    assert steps < len(alone)


def test_a_prefix_is_computed_once_and_its_tokens_are_reported(
    pico: Model, prompts: list[list[int]]
) -> None:
    engine = Engine(*pico, EngineSettings(page_size=8))
    first = engine.add(Request(prompts[6], 2))
    finish(engine)
    second = engine.add(Request(prompts[6], 2))
    third = engine.add(Request(prompts[7], 2))
    finish(engine)
    length = len(prompts[6])
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens == min(length // 8 * 8, length - 1)
    assert third.usage.cached_tokens == length // 8 * 8
    assert engine.stats.cached_tokens == sum(h.usage.cached_tokens for h in (second, third))


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_logits_have_the_bits_of_generate_alone(
    pico: Model, prompts: list[list[int]], chunk: int
) -> None:
    """In bfloat16, prefill and decode round differently: both must compute the same tokens."""
    loaded = load("pico", ops=pico[0].ops, dtype=mx.bfloat16)
    engine = Engine(*loaded, EngineSettings(page_size=8, max_num_batched_tokens=chunk))
    # Each prompt comes twice. The second prompt 9 has one token left, because it has whole pages.
    handles = [engine.add(Request(prompt, 6, logprobs=True)) for prompt in 2 * prompts[:11]]
    outputs = {handle: list(engine.run(handle)) for handle in handles}
    assert handles[20].usage.cached_tokens == len(prompts[9]) - 1
    for handle, own in outputs.items():
        alone = list(generate(*loaded, handle.prompt, max_tokens=6))
        assert [output.token for output in own] == [piece.token for piece in alone]
        assert [output.logprob for output in own] == [piece.logprob for piece in alone]


@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_pages_equal_a_quantized_cache(
    pico: Model, prompts: list[list[int]], bits: int
) -> None:
    model, tokenizer = pico
    engine = Engine(model, tokenizer, EngineSettings(kv_bits=bits))
    # A short prompt, two long prompts with a common prefix, one of whole pages, one of one token.
    handles = [engine.add(Request(prompts[place], 16)) for place in (0, 6, 7, 9, 10)]
    finish(engine)
    for handle in handles:
        caches = model.make_caches(kv_bits=bits)
        pieces = generate(model, tokenizer, handle.prompt, max_tokens=16, caches=caches)
        assert answer(handle) == [piece.token for piece in pieces]


def test_outputs_are_text_logprobs_and_a_reason(pico: Model, prompts: list[list[int]]) -> None:
    engine = Engine(*pico)
    sampling = SamplingParams(top_logprobs=3)
    handle = engine.add(Request(prompts[0], 200, sampling, stop=["by its"]))
    outputs = list(engine.run(handle))
    pieces = list(generate(*pico, prompts[0], max_tokens=200, sampling=sampling, stop=["by its"]))
    assert "".join(o.text for o in outputs) == "".join(piece.text for piece in pieces)
    assert [o.token for o in outputs] == [piece.token for piece in pieces]
    assert [o.finish_reason for o in outputs] == [piece.finish_reason for piece in pieces]
    for output, piece in zip(outputs, pieces, strict=True):
        assert output.logprob == pytest.approx(piece.logprob, abs=1e-4)
        assert [t.token for t in output.top] == [token for token, _ in piece.top_logprobs]
    assert outputs[-1].usage.completion_tokens == len(outputs)
    assert [output.stop for output in outputs[-2:]] == [None, "by its"]


@pytest.mark.parametrize("seed", range(4))
def test_tenants_get_their_tokens_beside_other_tenants(
    pico: Model, prompts: list[list[int]], generated: Oracle, seed: int
) -> None:
    tally = run_schedule(*pico, prompts, generated, seed, tenants=3)
    assert tally.tokens > 0


def test_tenants_do_not_share_prefixes(pico: Model, prompts: list[list[int]]) -> None:
    engine = Engine(*pico, EngineSettings(page_size=8))

    def cached(salt: str) -> int:
        (output,) = engine.run(engine.add(Request(prompts[6], 1, cache_salt=salt)))
        return output.usage.cached_tokens

    assert [cached("a"), cached("b"), cached("")] == [0, 0, 0]
    assert min(cached("a"), cached("b"), cached("")) > 0


def test_a_prompt_alone_gets_longer_steps(pico: Model) -> None:
    engine = Engine(*pico)
    engine._budget.tokens, engine._budget.tokens_alone = 4, 12
    request = engine.add(Request([5] * 40, 1))
    engine.step()
    assert request.num_computed_tokens == 12


def test_run_keeps_the_outputs_of_other_requests(
    pico: Model, prompts: list[list[int]], generated: Oracle
) -> None:
    engine = Engine(*pico)
    first, second, third = (engine.add(Request(prompt, 9)) for prompt in prompts[:3])
    outputs: dict[RequestState, list[Output]] = {handle: [] for handle in (first, second, third)}
    outputs[first] += engine.run(first)
    for mine, others in zip(engine.run(second), engine.run(third), strict=False):
        outputs[second].append(mine)
        outputs[third].append(others)
    for handle in (second, third):
        outputs[handle] += engine.run(handle)
    for handle, found in outputs.items():
        wanted = generated(handle.prompt, 9, GREEDY)
        tokens = [output.token for output in found]
        assert tokens == wanted[: len(tokens)] == answer(handle)[: len(tokens)]
        assert len(tokens) >= len(wanted) - (handle is second)
        assert not handle.outputs
    assert not engine.has_work


def test_end_tokens_can_be_ignored(pico: Model, prompts: list[list[int]]) -> None:
    engine = Engine(*pico)
    handle = engine.add(Request(prompts[0], 150, ignore_end=True))
    outputs = list(engine.run(handle))
    assert len(outputs) == 150
    assert outputs[-1].finish_reason == "length"


def test_the_context_ends_a_text(pico: Model, prompts: list[list[int]]) -> None:
    context = pico[0].config.context_length
    prompt = (prompts[6] * context)[: context - 3]
    engine = Engine(*pico)
    handle = engine.add(Request(prompt, 100, ignore_end=True))
    assert len(list(engine.run(handle))) == 3


def test_the_context_can_be_limited(pico: Model) -> None:
    engine = Engine(*pico, EngineSettings(page_size=8, max_model_len=21, max_num_seqs=2))
    assert engine.stats.pages_total == 2 * 3
    handle = engine.add(Request([1] * 8, 100, ignore_end=True))
    assert len(list(engine.run(handle))) == 21 - 8
    with pytest.raises(RequestError, match=r"^prompt: expected at most 20 .* is 21 tokens$"):
        engine.add(Request([1] * 21))
    with pytest.raises(ValueError, match="max_model_len: expected at least 2, got 1"):
        EngineSettings(max_model_len=1)


def test_requests_that_can_never_be_served_are_refused(
    pico: Model, prompts: list[list[int]]
) -> None:
    model = pico[0]
    engine = Engine(*pico, EngineSettings(page_size=4, kv_cache_memory_bytes=pages_of(model, 5, 4)))
    vocab, context = model.config.vocab_size, model.config.context_length
    refused = [
        ([vocab], {}, f"from 0 to {vocab - 1}"),
        ([-1], {}, f"from 0 to {vocab - 1}"),
        ([1] * context, {}, "shorten it"),
        ([1] * 20, {"max_tokens": 1}, "^prompt: expected at most 19 tokens, .* got 20"),
        ([1] * 20, {"embedding": True}, "this model's maximum context length is 20 tokens$"),
        ([1], {"max_tokens": 4, "stop": [""]}, "at least one character"),
        ([1], {"max_tokens": 4, "sampling": SamplingParams(logit_bias={vocab: 1.0})}, "logit_bias"),
    ]
    for prompt, rest, message in refused:
        with pytest.raises(RequestError, match=message):
            engine.add(Request(prompt, **rest))  # type: ignore[arg-type]  # fields of several types
    assert not engine.has_work
    handle = engine.add(Request([1] * 8, 13, ignore_end=True))
    assert [output.finish_reason for output in engine.run(handle)] == [None] * 11 + ["length"]
    assert engine.embed([1] * 19) == engine.embed([1] * 19)
    with pytest.raises(RequestError, match="at least one token"):
        Request([])
    for weight in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(RequestError, match="weight: expected a finite number"):
            Request([1], weight=weight)
    with pytest.raises(RequestError, match="max_tokens"):
        Request([1], 0)


def test_a_full_queue_refuses_requests(pico: Model, prompts: list[list[int]]) -> None:
    engine = Engine(*pico, EngineSettings(max_num_seqs=1, max_waiting=2))
    handles = [engine.add(Request(prompts[0], 4)) for _ in range(3)]
    with pytest.raises(EngineFullError, match="3 requests are waiting") as caught:
        engine.add(Request(prompts[0], 4))
    assert caught.value.retry_after > 0
    finish(engine)
    assert all(handle.finish_reason for handle in handles)


def test_embeddings_do_not_depend_on_chunks(pico: Model, prompts: list[list[int]]) -> None:
    model = pico[0]
    batch = Batch.at(0, 1, len(prompts[6]), "prefill")
    h = model.hidden(mx.array([prompts[6]]), batch, model.make_caches())
    state = model.norm(h[0, -1])
    wanted = (state / mx.linalg.norm(state)).tolist()
    for chunk in (1, 7, 512):
        engine = Engine(*pico, EngineSettings(max_num_batched_tokens=chunk))
        assert engine.embed(prompts[6]) == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(RequestError, match="at least one token"):
        engine.embed([])


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        ("page_size", 0, "at least 1"),
        ("max_num_seqs", 0, "at least 1"),
        ("max_num_batched_tokens", 0, "at least 1"),
        ("step_seconds", 0.0, "a finite number above 0"),
        ("kv_cache_memory_bytes", -1, "at least 0"),
        ("kv_bits", 5, "4, 8 or None"),
    ],
)
def test_settings_out_of_range_are_refused(name: str, number: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected {message}"):
        EngineSettings(**{name: number})  # type: ignore[arg-type]  # a field by its name


def test_too_little_memory_for_a_page_is_refused(pico: Model) -> None:
    with pytest.raises(ValueError, match="bytes for one page of 32 tokens, got 100"):
        Engine(*pico, EngineSettings(kv_cache_memory_bytes=100))


class Shared(Qwen):
    """A whole model that claims to be one of two ranks. `noted` has the k of calls, or None."""

    num_ranks = 2

    def __init__(self, model: Qwen) -> None:
        vars(self).update(vars(model))
        self.noted: list[int | None] = []

    def __call__(self, *args: Any, **rest: Any) -> mx.array:
        self.noted.append(None)
        return super().__call__(*args, **rest)

    def best_tokens(  # type: ignore[override]
        self, tokens: mx.array, batch: Batch, caches: Sequence[LayerCache], k: int, **rest: Any
    ) -> object:
        self.noted.append(k)
        return super().best_tokens(tokens, batch, caches, k, **rest)


@pytest.mark.parametrize("within", [3, 0])
def test_the_rank_with_the_most_layers_limits_the_pages(pico: Model, within: int) -> None:
    class Larger(Shared):
        def page_bytes(self, page_size: int, *, kv_bits: int | None) -> int:  # type: ignore[override]
            return memory // within if within else memory + 1

    model, tokenizer = pico
    memory = pages_of(model, 6, 4)
    settings = EngineSettings(page_size=4, kv_cache_memory_bytes=memory)
    if within:
        assert Engine(Larger(model), tokenizer, settings).stats.pages_total == within
    else:
        with pytest.raises(ValueError, match="bytes for one page of 4 tokens"):
            Engine(Larger(model), tokenizer, settings)


def test_ranks_exchange_only_the_tokens_that_decide_the_choice(
    pico: Model, prompts: list[list[int]], generated: Oracle
) -> None:
    model = Shared(pico[0])
    few = SamplingParams(temperature=0.9, top_k=5, top_p=0.9, seed=8)
    for kinds, most, all_of in (
        ([GREEDY], 1, {1}),
        ([GREEDY, few], 5, {1, 5}),  # 1 after the requests that want 5 have ended
        ([few, DRAWN], None, {None, 5}),
    ):
        model.noted.clear()
        engine = Engine(model, pico[1], EngineSettings(num_speculative_tokens=2))
        handles = [
            engine.add(Request(prompt, 9, kinds[place % len(kinds)]))
            for place, prompt in enumerate(prompts)
        ]
        finish(engine)
        for handle in handles:
            assert answer(handle) == generated(handle.prompt, 9, handle.request.sampling)
        assert most in model.noted
        assert set(model.noted) <= all_of


def test_best_tokens_of_ranks_give_the_same_logprobs(pico: Model, prompts: list[list[int]]) -> None:
    requests = [
        Request(prompts[0], 6, logprobs=True),
        Request(prompts[1], 6, SamplingParams(top_logprobs=3)),
        Request(prompts[2], 6),
        Request(prompts[3], 6, SamplingParams(temperature=0.9, top_k=5, seed=1, top_logprobs=3)),
    ]
    found = []
    for model in (pico[0], Shared(pico[0])):
        engine = Engine(model, pico[1])
        handles = [engine.add(request) for request in requests]
        found.append([list(engine.run(handle)) for handle in handles])
    assert None not in model.noted  # type: ignore[attr-defined]
    for alone, shared in zip(*found, strict=True):
        assert [output.token for output in alone] == [output.token for output in shared]
        for one, other in zip(alone, shared, strict=True):
            assert (one.logprob is None) == (other.logprob is None) == (alone is found[0][2])
            if one.logprob is not None:
                assert other.logprob == pytest.approx(one.logprob, abs=1e-4)
            assert [top.token for top in one.top] == [top.token for top in other.top]
            assert [top.logprob for top in one.top] == pytest.approx(
                [top.logprob for top in other.top], abs=1e-4
            )
