"""A step that fails costs no token and no page."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_engine import (
    AsyncEngine,
    Engine,
    EngineClosedError,
    EngineSettings,
    Grammar,
    Request,
    RequestFailedError,
    RequestState,
    async_engine,
)
from tinyllm_engine.testing import DRAWN, GREEDY, PENALIZED, Oracle, run_schedule
from tinyllm_layers import Batch, LayerCache
from tinyllm_qwen import Qwen, Sampler, SamplingParams, Tokenizer

Model = tuple[Qwen, Tokenizer]


class Failing(Qwen):
    """A model whose passes fail, if `fails` returns True, after they have written to the pages."""

    def __init__(self, model: Qwen) -> None:
        vars(self).update(vars(model))
        self.passes = 0
        self.fails = lambda number: False

    def hidden(self, tokens: mx.array, batch: Batch, caches: Sequence[LayerCache]) -> mx.array:
        h = super().hidden(tokens, batch, caches)
        self.passes += 1
        if self.fails(self.passes):  # type: ignore[no-untyped-call]
            mx.eval(h, [array for cache in caches for array in cache.arrays])
            for cache in caches:  # the pages are lost
                for array in cache.arrays:
                    array[:] = mx.full(array.shape, float("nan"), dtype=array.dtype)
            raise RuntimeError("the memory is on fire")
        return h


def answer(handle: RequestState) -> list[int]:
    return handle.tokens[len(handle.prompt) :]


def finish(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def assert_nothing_is_left(engine: Engine) -> None:
    stats = engine.stats
    assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)


@pytest.mark.parametrize(
    "failing", [1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (2, 3, 8)), 15]
)
@pytest.mark.parametrize("num_speculative_tokens", [0, 3])
def test_a_failed_pass_changes_no_token(
    pico: Model,
    prompts: list[list[int]],
    generated: Oracle,
    failing: int,
    num_speculative_tokens: int,
) -> None:
    model, draft_model = Failing(pico[0]), pico[0] if num_speculative_tokens else None
    settings = EngineSettings(
        8, max_num_batched_tokens=64, num_speculative_tokens=num_speculative_tokens, max_num_seqs=6
    )
    engine = Engine(model, pico[1], settings, draft_model=draft_model)
    finished = engine.add(Request(prompts[6], 2))
    finish(engine)
    assert engine.stats.pages_cached > 0
    model.passes, model.fails = 0, lambda number: number == failing
    handles = [
        engine.add(Request(prompt, 14, sampling))
        for prompt, sampling in zip(prompts, [GREEDY, DRAWN, PENALIZED] * 4, strict=False)
    ]
    grammar = Grammar.regex("(norm|rope){3}")
    constrained = engine.add(Request(prompts[0], 20, DRAWN, grammar=grammar))
    finish(engine)
    assert engine.stats.failed_steps == 1
    for handle in (finished, *handles):
        assert answer(handle) == generated(
            handle.prompt, handle.max_tokens, handle.request.sampling
        )
    alone = Engine(*pico)
    wanted = alone.add(constrained.request)
    finish(alone)
    assert answer(constrained) == answer(wanted)
    assert_nothing_is_left(engine)


def test_requests_that_fail_again_end_with_an_error(
    pico: Model, prompts: list[list[int]], generated: Oracle
) -> None:
    model = Failing(pico[0])
    engine = Engine(model, pico[1], EngineSettings(max_num_seqs=3))
    handles = [engine.add(Request(prompt, 9)) for prompt in prompts[:5]]
    engine.step()
    model.fails = lambda number: True
    finish(engine)
    assert {handle.finish_reason for handle in handles} == {"error"}
    assert len(answer(handles[0])) == 1  # the token before the failures is kept
    with pytest.raises(RequestFailedError, match="two steps"):
        list(engine.run(handles[0]))
    assert_nothing_is_left(engine)
    model.fails = lambda number: False
    handle = engine.add(Request(prompts[0], 9))
    assert [output.token for output in engine.run(handle)] == generated(prompts[0], 9, GREEDY)


def test_a_token_between_two_failures_forgives_the_first(
    pico: Model, prompts: list[list[int]], generated: Oracle
) -> None:
    model = Failing(pico[0])
    engine = Engine(model, pico[1])
    handles = [engine.add(Request(prompt, 12)) for prompt in prompts[:3]]
    model.fails = lambda number: number % 7 == 0
    finish(engine)
    assert engine.stats.failed_steps > 1
    for handle in handles:
        assert answer(handle) == generated(handle.prompt, 12, GREEDY)


@pytest.mark.parametrize("num_tokens", [0, 3])
@pytest.mark.parametrize("num_speculative_tokens", [0, 3])
def test_requests_whose_steps_fail_take_no_others_with_them(
    pico: Model,
    prompts: list[list[int]],
    generated: Oracle,
    num_tokens: int,
    num_speculative_tokens: int,
) -> None:
    """Two of eight requests make each step fail, after some tokens."""
    settings = EngineSettings(
        8, max_num_batched_tokens=64, num_speculative_tokens=num_speculative_tokens, max_num_seqs=5
    )
    engine = Engine(*pico, settings)
    handles = [engine.add(Request(prompt, 9)) for prompt in prompts[:8]]
    culprits = [handles[1], handles[5]]

    class Broken(Sampler):
        def ahead(self, draft_tokens: Sequence[int]) -> list[Sampler]:
            if any(len(answer(each)) == num_tokens and each.sampler is self for each in culprits):
                raise ValueError("no memory for the penalties")
            return super().ahead(draft_tokens)

    for culprit in culprits:
        culprit.sampler = Broken(GREEDY, pico[0].config.vocab_size, pico[0].ops)
    finish(engine)
    for handle, prompt in zip(handles, prompts, strict=False):
        count = num_tokens if handle in culprits else 9
        assert handle.finish_reason == ("error" if handle in culprits else "length")
        assert answer(handle) == generated(prompt, 9, GREEDY)[:count]
    assert_nothing_is_left(engine)


def test_other_requests_go_on_while_a_failed_step_is_computed_again(
    pico: Model, prompts: list[list[int]]
) -> None:
    engine = Engine(*pico)
    for prompt in prompts[:4]:
        engine.add(Request(prompt, 40, ignore_end=True))
    engine.step()
    for suspect in engine._scheduler.running[1:]:
        suspect.is_suspect = True
    served = []
    for _ in range(7):
        engine.step()
        served.append(len(engine._scheduler.served))
    assert served in ([1, 1, 2, 1, 3, 1, 4], [1, 2, 1, 3, 1, 4, 4])


@pytest.mark.parametrize("name", ["prefill", "decode", "sample"])
def test_each_part_of_a_step_may_fail(
    pico: Model,
    prompts: list[list[int]],
    generated: Oracle,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(*pico)
    original, failures = getattr(engine._runner, name), [MemoryError()]

    def fail_once(*args: Any) -> object:
        result = original(*args)
        if failures:
            raise failures.pop()
        return result

    monkeypatch.setattr(engine._runner, name, fail_once)
    handles = [engine.add(Request(prompt, 5, DRAWN)) for prompt in prompts[:3]]
    finish(engine)
    assert engine.stats.failed_steps == 1
    for handle in handles:
        assert answer(handle) == generated(handle.prompt, 5, DRAWN)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seed", range(6))
def test_random_schedules_with_failures_lose_nothing(
    pico: Model, prompts: list[list[int]], generated: Oracle, seed: int
) -> None:
    tally = run_schedule(*pico, prompts, generated, seed, failures=0.1)
    assert tally.failures > 0


def test_ranks_do_not_go_on_after_a_failed_step(
    pico: Model, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Failing(pico[0])
    engine = Engine(model, pico[1])
    engine.add(Request(prompts[0], 9))
    model.fails = lambda number: True
    monkeypatch.setattr(engine._recovery, "is_possible", False)
    with pytest.raises(RuntimeError, match="on fire"):
        engine.step()


async def collect(engine: AsyncEngine, request: Request) -> list[int]:
    return [output.token async for output in engine.stream(request)]


def test_streams_raise_the_error_of_their_request_and_the_engine_goes_on(
    pico: Model, prompts: list[list[int]], generated: Oracle
) -> None:
    models: list[Failing] = []

    def make() -> Engine:
        models.append(Failing(pico[0]))
        return Engine(models[0], pico[1])

    async def main() -> None:
        engine = AsyncEngine(make)
        await engine.start()
        models[0].fails = lambda number: number in (2, 4)  # first decode pass of each
        for prompt in prompts[:2]:
            tokens = asyncio.create_task(collect(engine, Request(prompt, 5)))
            if prompt is prompts[0]:
                with pytest.raises(RequestFailedError, match="two steps"):
                    await tokens
            else:
                assert await tokens == generated(prompt, 5, GREEDY)
        assert engine.closed is None
        models[0].fails = lambda number: True
        for _ in range(async_engine.MAX_FAILURES // 2 - 1):
            with pytest.raises(RequestFailedError):
                await collect(engine, Request(prompts[0], 5))
        with pytest.raises((EngineClosedError, RequestFailedError)):
            await collect(engine, Request(prompts[0], 5))
        await engine.ended()
        assert "in succession" in (engine.closed or "")  # type: ignore[redundant-expr]
        await engine.close()

    asyncio.run(main())


def test_a_decode_step_enters_few_files(pico: Model, prompts: list[list[int]]) -> None:
    """Count the engine's own files. Drafters and grammars are entered only if they are used."""
    engine = Engine(*pico, EngineSettings(page_size=32))
    for prompt in prompts[:2]:
        engine.add(Request(prompt, 9, SamplingParams(), ignore_end=True))
    for _ in range(3):
        engine.step()
    entered: set[str] = set()

    def note(frame: object, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)  # type: ignore[attr-defined]
        if event == "call" and "tinyllm_engine" in path.parts:
            entered.add(path.name)

    sys.setprofile(note)
    try:
        engine.step()
    finally:
        sys.setprofile(None)
    assert entered <= {
        "engine.py",
        "recovery.py",
        "scheduler.py",
        "block_manager.py",
        "runner.py",
        "request.py",
    }
