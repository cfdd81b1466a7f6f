"""Tests of AsyncEngine. Each test has its own engine and event loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence

import mlx.core as mx
import pytest
from tinyllm_engine import (
    AsyncEngine,
    Engine,
    EngineClosedError,
    EngineFullError,
    EngineSettings,
    Grammar,
    Output,
    Request,
    RequestError,
    RequestState,
    UnreadOutputError,
    async_engine,
)
from tinyllm_kernels import available, opset
from tinyllm_qwen import SamplingParams, load
from tinyllm_qwen.malloc_trim import release_free_memory

Test = Callable[[AsyncEngine], Coroutine[None, None, None]]
Generated = Callable[[Sequence[int], int, SamplingParams], list[int]]


def make() -> Engine:
    ops = next(backend.name for backend in available() if backend.present)
    model, tokenizer = load("pico", ops=opset(ops))
    return Engine(model, tokenizer, EngineSettings(page_size=8))


def run(test: Test, make: Callable[[], Engine] = make) -> None:
    async def main() -> None:
        engine = AsyncEngine(make)
        await engine.start()
        try:
            await asyncio.wait_for(test(engine), 60)
        finally:
            await engine.close()

    asyncio.run(main())


async def collect(engine: AsyncEngine, request: Request) -> list[Output]:
    return [output async for output in engine.stream(request)]


async def until_idle(engine: AsyncEngine) -> None:
    while engine.stats.running or engine.stats.waiting:
        await asyncio.sleep(0.005)


def test_concurrent_streams_get_the_tokens_of_single_ones(prompts: list[list[int]]) -> None:
    async def test(engine: AsyncEngine) -> None:
        alone = [await collect(engine, Request(prompt, 12)) for prompt in prompts]
        together = await asyncio.gather(*(collect(engine, Request(p, 12)) for p in prompts))
        for one, other in zip(alone, together, strict=True):
            assert [o.token for o in one] == [o.token for o in other]
            assert "".join(o.text for o in one) == "".join(o.text for o in other)

    run(test)


@pytest.mark.parametrize("received", [0, 1, 5])
def test_a_closed_stream_frees_its_pages(prompts: list[list[int]], received: int) -> None:
    async def test(engine: AsyncEngine) -> None:
        stream = engine.stream(Request(prompts[6], 500, ignore_end=True))
        for _ in range(received):
            await anext(stream)
        await stream.aclose()
        await until_idle(engine)
        assert engine.stats.pages_used == 0

    run(test)


@pytest.mark.parametrize("delay", [0, 0.001, 0.02, 0.1])
def test_a_cancelled_task_frees_its_pages_in_any_phase(
    prompts: list[list[int]], delay: float
) -> None:
    async def test(engine: AsyncEngine) -> None:
        request = Request(prompts[6] * 3, 500, ignore_end=True)
        tasks = [asyncio.create_task(collect(engine, request)) for _ in range(3)]
        await asyncio.sleep(delay)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        await engine.embed(prompts[0])  # returns after the cancellations have run
        await until_idle(engine)
        assert engine.stats.pages_used == 0

    run(test)


def test_a_request_whose_outputs_are_not_read_is_cancelled(
    prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_engine, "MAX_UNREAD_OUTPUTS", 200)

    async def test(engine: AsyncEngine) -> None:
        stream = engine.stream(Request(prompts[0], 500, ignore_end=True))
        other = asyncio.create_task(
            collect(engine, Request(prompts[1], 200, ignore_end=True))  # is read, and complete
        )
        await anext(stream)
        assert len(await other) == 200
        await until_idle(engine)
        assert engine.stats.pages_used == 0
        for _ in range(200):
            await anext(stream)
        with pytest.raises(UnreadOutputError, match="200 unread tokens: read it faster"):
            await anext(stream)
        await engine.embed(prompts[0])  # the engine goes on

    run(test)


def test_a_request_is_checked_without_being_queued(prompts: list[list[int]]) -> None:
    async def test(engine: AsyncEngine) -> None:
        engine.check(Request(prompts[0], embedding=True))
        with pytest.raises(RequestError, match=r"^prompt: expected token ids from 0 to"):
            await asyncio.to_thread(engine.check, Request([10**6]))
        assert engine.stats.prompt_tokens == 0

    run(test)


def test_draining_finishes_running_requests_and_refuses_new_ones(prompts: list[list[int]]) -> None:
    async def test(engine: AsyncEngine) -> None:
        task = asyncio.create_task(collect(engine, Request(prompts[0], 30, ignore_end=True)))
        await asyncio.sleep(0.01)
        drained = asyncio.create_task(engine.drain())
        await asyncio.sleep(0)
        with pytest.raises(EngineClosedError, match="shutting down"):
            await collect(engine, Request(prompts[0]))
        with pytest.raises(EngineClosedError, match="shutting down"):
            await engine.embed(prompts[0])
        await drained
        assert len(await task) == 30

    run(test)


def test_embeddings_do_not_stall_running_requests(
    prompts: list[list[int]],
) -> None:
    text = prompts[6] * 8
    chunk = 32  # minimum of a PrefillBudget, in tokens

    def hasty() -> Engine:
        engine = make()
        settings = EngineSettings(
            page_size=8,
            step_seconds=1e-9,
            max_num_batched_tokens=chunk,
            enable_prefix_caching=False,
        )
        return Engine(engine.model, engine.tokenizer, settings)

    async def test(engine: AsyncEngine) -> None:
        stream = engine.stream(Request(prompts[0], 1000, ignore_end=True))
        await anext(stream)
        embeddings = asyncio.gather(*(engine.embed(text) for _ in range(4)))
        tokens = 0
        while not embeddings.done():
            await anext(stream)
            tokens += 1
        await stream.aclose()
        one, *others = embeddings.result()
        for other in others:
            assert other == pytest.approx(one, abs=1e-5)
        # Usually one token follows each chunk. Embeddings in one piece would allow only a few.
        assert tokens > 2 * len(text) // chunk

    run(test, hasty)


def test_draining_waits_for_embeddings(prompts: list[list[int]]) -> None:
    async def test(engine: AsyncEngine) -> None:
        embeddings = [asyncio.create_task(engine.embed(prompts[6] * 8)) for _ in range(3)]
        await asyncio.sleep(0.01)
        await engine.drain()
        assert all(each.done() for each in embeddings)

    run(test)


def test_closing_ends_embeddings_that_wait(prompts: list[list[int]]) -> None:
    async def test(engine: AsyncEngine) -> None:
        embeddings = [asyncio.create_task(engine.embed(prompts[6] * 8)) for _ in range(30)]
        await asyncio.sleep(0.01)
        await engine.close()
        results = await asyncio.gather(*embeddings, return_exceptions=True)
        assert any(isinstance(result, EngineClosedError) for result in results)

    run(test)


def test_a_failure_in_the_last_moment_of_a_compilation_ends_the_request() -> None:
    async def test(engine: AsyncEngine) -> None:
        request = Request([1, 2, 3], 3, grammar=Grammar("regex", "[ab]{3}"))
        await collect(engine, request)  # the grammar is in the cache from now on
        task = asyncio.create_task(collect(engine, request))
        await asyncio.sleep(0)
        engine.fail("gone")
        with pytest.raises(EngineClosedError, match="gone"):
            await task

    run(test)


def test_an_idle_engine_admits_as_many_requests_as_run_and_wait_together() -> None:
    def small() -> Engine:
        engine = make()
        settings = EngineSettings(page_size=8, max_num_seqs=4, max_waiting=2)
        return Engine(engine.model, engine.tokenizer, settings)

    async def test(engine: AsyncEngine) -> None:
        request = Request([1, 2, 3], 20, ignore_end=True)
        answers = await asyncio.gather(*(collect(engine, request) for _ in range(6)))
        assert [len(each) for each in answers] == [20] * 6
        results = await asyncio.gather(
            *(collect(engine, request) for _ in range(7)), return_exceptions=True
        )
        assert sum(isinstance(each, EngineFullError) for each in results) == 1

    run(test, small)


def test_a_full_queue_takes_a_request_from_the_tenant_with_most(prompts: list[list[int]]) -> None:
    def small() -> Engine:
        engine = make()
        settings = EngineSettings(page_size=8, max_num_seqs=2, max_waiting=3)
        return Engine(engine.model, engine.tokenizer, settings)

    async def test(engine: AsyncEngine) -> None:
        greedy = Request(prompts[0], 1500, ignore_end=True, tenant="greedy")
        tasks = []
        for waiting in (0, 0, 1, 2, 3):
            tasks.append(asyncio.create_task(collect(engine, greedy)))
            while engine.stats.running + engine.stats.waiting < len(tasks):
                await asyncio.sleep(0.01)
            while engine.stats.waiting > waiting:
                await asyncio.sleep(0.01)
        with pytest.raises(EngineFullError):
            await collect(engine, greedy)
        # Another tenant takes the place of the last request in the queue, and a seat.
        assert len(await collect(engine, Request(prompts[0], 3, tenant="other"))) == 3
        with pytest.raises(EngineFullError):
            await tasks.pop()
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()

    run(test, small)


def test_an_idle_engine_frees_memory(
    prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[tuple[int, int]] = []

    def recorded() -> None:
        before = mx.get_cache_memory()
        release_free_memory()
        kept.append((before, mx.get_cache_memory()))

    monkeypatch.setattr(async_engine, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(async_engine, "release_free_memory", recorded)

    async def test(engine: AsyncEngine) -> None:
        for _ in range(2):
            kept.clear()
            await collect(engine, Request(prompts[6], 8))
            while not kept or kept[-1][0] == 0:
                await asyncio.sleep(0.02)
            assert kept[-1][1] == 0

    run(test)


def test_closing_fails_running_requests(prompts: list[list[int]]) -> None:
    async def test(engine: AsyncEngine) -> None:
        task = asyncio.create_task(collect(engine, Request(prompts[0], 1500, ignore_end=True)))
        await asyncio.sleep(0.05)
        await engine.close()
        with pytest.raises(EngineClosedError):
            await task

    run(test)


def test_an_invalid_request_fails_alone(prompts: list[list[int]]) -> None:
    async def test(engine: AsyncEngine) -> None:
        with pytest.raises(RequestError, match="from 0 to"):
            await collect(engine, Request([10**9]))
        assert len(await collect(engine, Request(prompts[0], 3))) == 3

    run(test)


class BrokenEngine(Engine):
    """An engine whose first step fails."""

    def step(self) -> list[tuple[RequestState, Output]]:
        raise RuntimeError("the memory is on fire")


def test_a_failed_engine_fails_all_requests_and_keeps_the_error_private(
    prompts: list[list[int]],
) -> None:
    async def test(engine: AsyncEngine) -> None:
        for _ in range(2):
            with pytest.raises(EngineClosedError, match="log") as error:
                await collect(engine, Request(prompts[0]))
            assert "on fire" not in str(error.value)

    whole = make()
    run(test, lambda: BrokenEngine(whole.model, whole.tokenizer))


def test_the_failing_hook_can_give_a_better_reason(prompts: list[list[int]]) -> None:
    whole = make()

    async def main() -> None:
        engine = AsyncEngine(
            lambda: BrokenEngine(whole.model, whole.tokenizer),
            lambda: engine.fail("rank 1 has left"),
        )
        await engine.start()
        with pytest.raises(EngineClosedError, match=r"^rank 1 has left$"):
            await collect(engine, Request(prompts[0]))
        await engine.close()
        assert engine.closed == "rank 1 has left"

    asyncio.run(main())


class StuckEngine(Engine):
    """An engine whose steps set `begun` and wait until the test sets `forever`, at most 60 s."""

    begun = threading.Event()
    forever = threading.Event()

    def step(self) -> list[tuple[RequestState, Output]]:
        self.begun.set()
        self.forever.wait(60)
        return []


@pytest.mark.parametrize("embeds", [False, True])
def test_fail_ends_a_step_that_never_returns(prompts: list[list[int]], embeds: bool) -> None:
    async def test(engine: AsyncEngine) -> None:
        asked = engine.embed(prompts[0]) if embeds else collect(engine, Request(prompts[0]))
        waiting = asyncio.create_task(asked)
        await asyncio.sleep(0.05)
        behind = asyncio.create_task(collect(engine, Request(prompts[1])))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(engine.fail, "rank 1 has left")
        await engine.ended()
        for each in (waiting, behind, collect(engine, Request(prompts[0]))):
            with pytest.raises(EngineClosedError, match="rank 1 has left"):
                await each
        await engine.drain()
        assert engine.closed == "rank 1 has left"
        StuckEngine.forever.set()

    whole = make()
    StuckEngine.forever.clear()
    run(test, lambda: StuckEngine(whole.model, whole.tokenizer))


def test_a_request_that_is_cancelled_during_a_step_is_not_added(prompts: list[list[int]]) -> None:
    async def test(engine: AsyncEngine) -> None:
        tasks = [asyncio.create_task(collect(engine, Request(prompts[0])))]
        await asyncio.to_thread(StuckEngine.begun.wait)
        tasks += [asyncio.create_task(collect(engine, Request(prompts[1]))) for _ in range(3)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        StuckEngine.forever.set()
        await until_idle(engine)
        assert engine._started._added == 1

    whole = make()
    StuckEngine.begun.clear()
    StuckEngine.forever.clear()
    run(test, lambda: StuckEngine(whole.model, whole.tokenizer))
