"""The draft head of a hybrid model changes the speed of decoding, and no bit of an answer."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_engine import Engine, EngineSettings, Grammar, Request, RequestState
from tinyllm_engine.speculative.head_drafter import HeadDrafter
from tinyllm_engine.testing import DRAWN, GREEDY, PENALIZED, Oracle, Tally, run_schedule
from tinyllm_layers import Batch, PagedCache
from tinyllm_qwen import Qwen, SamplingParams, Tokenizer, generate, load
from tinyllm_qwen.speculation import Speculation
from tinyllm_qwen.testing import counting_model, hybrid_checkpoint

Model = tuple[Qwen, Tokenizer]
Prompts = list[list[int]]
SETTINGS = EngineSettings(
    8, kv_cache_memory_bytes=1 << 25, num_speculative_tokens=3, max_num_batched_tokens=50
)


@pytest.fixture(scope="module")
def random_head(pico: Model, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model with random weights, whose draft tokens are nearly always wrong."""
    folder = hybrid_checkpoint(tmp_path_factory.mktemp("models") / "qwen35")
    return load(folder, ops=pico[0].ops, dtype=mx.float32, draft_head=True)


@pytest.fixture(scope="module")
def counting(pico: Model, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model that counts, whose draft tokens are nearly always right."""
    return counting_model(tmp_path_factory.mktemp("models") / "counting", pico[0].ops)


def finish(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
    stats = engine.stats
    assert stats.pages_used == stats.states_used == stats.snapshots_used == 0


def answer(handle: RequestState) -> list[int]:
    return handle.tokens[len(handle.prompt) :]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "name", [pytest.param("random_head", marks=pytest.mark.exhaustive), "counting"]
)
def test_random_schedules_give_each_request_the_tokens_it_gets_alone(
    name: str, prompts: Prompts, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model: Model = request.getfixturevalue(name)
    tally, answers = Tally(), Oracle(*model)
    for seed in range(5):
        path = tmp_path / str(seed) if seed % 2 else None
        failures = 0.0 if seed % 3 else 0.05
        tally += run_schedule(
            *model, prompts, answers, seed, failures=failures, prefix_cache_path=path
        )
    events = asdict(tally)
    assert events["restarts"] == 2
    assert min(events[each] for each in ("prefix_hits", "num_draft_tokens", "failures")) > 0
    assert (
        name != "counting" or tally.num_draft_tokens > tally.accepted > tally.num_draft_tokens // 2
    )


def test_a_prompt_has_the_log_probabilities_of_one_pass(counting: Model, prompts: Prompts) -> None:
    prompt, engine = prompts[6] * 3, Engine(*counting, SETTINGS)
    list(engine.run(engine.add(Request(prompt, 9))))  # pages and snapshots of the prompt
    (first, *_) = engine.run(engine.add(Request(prompt, 9, prompt_logprobs=True)))
    logits = counting[0](mx.array([prompt]), batch=Batch.at(0, 1, len(prompt), "prefill"))
    rows = np.array(logits[0].astype(mx.float32)).astype(np.float64)
    for each, row in zip(first.prompt_logprobs[1:], rows, strict=False):
        shifted = row - row.max()
        expected = shifted[each.token] - np.log(np.exp(shifted).sum())
        assert each.logprob == pytest.approx(expected, abs=1e-4)
    assert len(first.prompt_logprobs) == len(prompt)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("name", ["random_head", "counting"])
def test_logits_have_the_bits_of_generate_alone(
    name: str, prompts: Prompts, bits: int | None, request: pytest.FixtureRequest
) -> None:
    model: Model = request.getfixturevalue(name)
    engine = Engine(*model, replace(SETTINGS, kv_bits=bits))
    handles = [
        engine.add(Request(prompt, 10, sampling, logprobs=True))
        for prompt in [*prompts[4:8], *prompts[4:8]]
        for sampling in (GREEDY, DRAWN, PENALIZED)
    ]
    outputs = {handle: list(engine.run(handle)) for handle in handles}
    assert engine.stats.snapshot_hits > 4
    assert engine.stats.draft_tokens > 20
    assert (engine.stats.accepted_tokens > 20) == (name == "counting")
    for handle, own in outputs.items():
        caches = model[0].make_caches(kv_bits=bits)
        prompt, sampling = handle.prompt, handle.request.sampling
        alone = list(generate(*model, prompt, max_tokens=10, sampling=sampling, caches=caches))
        assert [output.token for output in own] == [piece.token for piece in alone]
        assert [output.logprob for output in own] == [piece.logprob for piece in alone]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN, PENALIZED])
def test_generate_alone_has_the_same_bits_with_drafts(
    counting: Model, prompts: Prompts, sampling: SamplingParams
) -> None:
    alone, drafted = (
        list(
            generate(
                *counting,
                prompts[4],
                max_tokens=30,
                sampling=sampling,
                num_speculative_tokens=count,
            )
        )
        for count in (0, 3)
    )
    assert [piece.token for piece in drafted] == [piece.token for piece in alone]
    assert [piece.logprob for piece in drafted] == [piece.logprob for piece in alone]
    assert drafted[-1].stats.accepted_tokens > 10


def test_a_right_head_is_always_accepted(counting: Model, prompts: Prompts) -> None:
    """A draft token from a wrong position, row or hidden state would be rejected."""
    page_bytes = counting[0].page_bytes(8)
    longest = -(-(max(map(len, prompts)) + 30) // 8)
    states = 40 * counting[0].state_bytes()
    settings = replace(
        SETTINGS,
        kv_cache_memory_bytes=2 * longest * page_bytes + states,
        snapshot_memory_bytes=8 * counting[0].state_bytes(),
        max_num_seqs=4,
    )
    engine = Engine(*counting, settings)
    for again in (False, True):
        handles = [engine.add(Request(prompt, 26, ignore_end=True)) for prompt in prompts]
        for _ in range(5):
            engine.step()
        running = [handle for handle in handles if handle.generated and not handle.finish_reason]
        engine._scheduler._preempt(running[-1])
        finish(engine)
        assert engine.stats.cached_tokens > 0 or not again
    assert engine.stats.draft_tokens == engine.stats.accepted_tokens > 400


def head_pages(engine: Engine, handle: RequestState, length: int) -> list[mx.array]:
    """Return the first `length` keys and values of the draft head for a request."""
    cache, pages = engine._pool.caches[-1], mx.array(handle.block_table, dtype=mx.int32)
    assert isinstance(cache, PagedCache)
    return [x[pages].swapaxes(1, 2).flatten(0, 1)[:length] for x in (cache.keys, cache.values)]


def test_pages_hold_what_the_head_computes_alone(random_head: Model, prompts: Prompts) -> None:
    prompt = prompts[6]
    kept = random_head[0].make_caches()
    list(generate(*random_head, prompt, max_tokens=20, caches=kept, num_speculative_tokens=2))
    alone = kept[-1].arrays[0][0]  # keys and values, heads, positions, features
    engine = Engine(*random_head, SETTINGS)
    engine.add(Request([*prompt, 7, 8, 9], 5))  # shares the pages of the prompt
    handle = engine.add(Request(prompt, 20, ignore_end=True))
    for event in range(14):
        engine.step()
        if event == 8:
            assert handle.generated > 3
            engine._scheduler._preempt(handle)
    length = handle.num_computed_tokens - 4  # the last chunk follows with the next draft
    assert length > len(prompt) + 2
    shared = (len(prompt) - 1) // 8 * 8
    for own, expected in zip(head_pages(engine, handle, length), alone, strict=True):
        wanted = expected[:, :length].swapaxes(0, 1)
        assert mx.array_equal(own[: shared - 1], wanted[: shared - 1])
        assert mx.allclose(own[shared:], wanted[shared:], rtol=1e-5, atol=1e-5)
    engine.cancel(handle)
    finish(engine)


def test_the_engine_drafts_what_generate_drafts(
    random_head: Model, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: dict[int, list[int]] = {}
    alone, together = Speculation.propose, HeadDrafter.propose
    prompt = prompts[10]  # of one token, so that each position matters
    assert len(prompt) == 1

    def recorded(own: Speculation, limit: int) -> None:
        alone(own, limit)
        draft = [] if own._draft is None else [int(token) for token in own._draft]
        wanted[own._caches[0].offset + 1] = draft

    monkeypatch.setattr(Speculation, "propose", recorded)
    list(generate(*random_head, prompt, max_tokens=12, num_speculative_tokens=3))
    found: dict[int, list[int]] = {}

    def noted(own: HeadDrafter, limits: Mapping[RequestState, int]) -> None:
        together(own, limits)
        if handle in limits and handle.draft_tokens:
            found[len(handle.tokens)] = list(handle.draft_tokens)

    monkeypatch.setattr(HeadDrafter, "propose", noted)
    engine = Engine(*random_head, SETTINGS)
    handle = engine.add(Request(prompt, 12))
    for other in prompts[:3]:
        engine.add(Request(other, 12, DRAWN))
    finish(engine)
    assert len(found) >= 3
    assert {length: wanted[length] for length in found} == found


def test_a_wrong_head_pauses(random_head: Model, prompts: Prompts) -> None:
    engine = Engine(*random_head, SETTINGS)
    engine.add(Request(prompts[0], 40, ignore_end=True))
    finish(engine)
    assert 6 <= engine.stats.draft_tokens <= 40


def test_equal_prompts_and_grammars_and_embeddings(counting: Model, prompts: Prompts) -> None:
    engine, answers = Engine(*counting, SETTINGS), Oracle(*counting)
    embedded = engine.embed(prompts[6])
    handles = [engine.add(Request(prompts[6], 9, replace(DRAWN, seed=n))) for n in range(4)]
    digits = Grammar("regex", "[0-9]{6}")
    limited = engine.add(Request(prompts[0], 12, DRAWN, grammar=digits))
    finish(engine)
    for handle in handles:
        assert answer(handle) == answers(prompts[6], 9, handle.request.sampling)
    assert len(counting[1].decode(answer(limited)[:-1])) == 6
    without = Engine(*load_without_head(counting), replace(SETTINGS, num_speculative_tokens=0))
    other = without.add(Request(prompts[0], 12, DRAWN, grammar=digits))
    finish(without)
    assert answer(other) == answer(limited)
    assert without.embed(prompts[6]) == embedded


def load_without_head(model: Model) -> Model:
    """Return the same model without its draft head."""
    plain = Qwen.__new__(Qwen)
    plain.__dict__.update(model[0].__dict__, draft_head=None)
    return plain, model[1]


def test_the_next_engine_loads_the_pages_of_the_head(
    counting: Model, prompts: Prompts, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, prefix_cache_path=tmp_path / "prefixes")
    first = Engine(*counting, settings)
    first.add(Request(prompts[6], 3))
    finish(first)
    assert first.save_prefixes() > 5
    second = Engine(*counting, settings)
    handle = second.add(Request(prompts[6], 9))
    finish(second)
    assert handle.usage.cached_tokens == (len(prompts[6]) - 1) // 8 * 8
    caches = [engine._pool.caches[-1] for engine in (first, second)]
    sums = [mx.abs(cache.arrays[0].astype(mx.float32)).sum().item() for cache in caches]
    assert sums[1] == pytest.approx(sums[0], rel=0.2)


def test_settings_that_do_not_fit_a_head(counting: Model, pico: Model) -> None:
    assert isinstance(Engine(*counting, SETTINGS)._drafter, HeadDrafter)
    with pytest.raises(
        ValueError, match=r"num_speculative_tokens of at least 1 .* got num_speculative_tokens = 0"
    ):
        Engine(*counting, replace(SETTINGS, num_speculative_tokens=0))
    with pytest.raises(ValueError, match="got a draft model: change it, or load the model without"):
        Engine(*counting, SETTINGS, draft_model=pico[0])
