"""The error of a full engine: its remedy is one that the caller can apply."""

import asyncio
from types import SimpleNamespace

import pytest
from tinyllm_engine import AsyncEngine, Engine, EngineFullError, EngineSettings, Grammar, Request
from tinyllm_engine.grammar import worker as worker_module
from tinyllm_qwen import Qwen, Tokenizer, load

Model = tuple[Qwen, Tokenizer]
SETTINGS = EngineSettings(page_size=8, max_num_seqs=1, max_waiting=2)
LONG = Request([1, 2, 3], 1500, ignore_end=True, tenant="greedy")


def test_the_caller_of_a_full_engine_computes_steps(pico: Model) -> None:
    engine = Engine(*pico, SETTINGS)
    request = Request([1, 2, 3], 2)
    states = [engine.add(request) for _ in range(3)]
    with pytest.raises(EngineFullError) as refused:
        engine.add(request)
    assert str(refused.value) == (
        "3 requests are waiting: call step(), or raise EngineSettings.max_waiting"
    )
    while states[0].finish_reason is None:
        engine.step()
    engine.add(request)


def test_the_caller_of_a_dropped_request_adds_it_again(pico: Model) -> None:
    engine = Engine(*pico, SETTINGS)
    states = [engine.add(LONG) for _ in range(3)]
    engine.add(Request([1, 2, 3], 2, tenant="other"))
    with pytest.raises(EngineFullError) as dropped:
        list(engine.run(states[-1]))
    assert str(dropped.value) == (
        "3 requests are waiting: add it again after step(), or raise EngineSettings.max_waiting"
    )


def test_the_caller_of_an_engine_without_memory_for_grammars_computes_steps(
    pico: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each grammar takes three seconds of a fake clock, more than a tenant may hold."""
    ticks = iter(range(0, 99, 3))
    clock = SimpleNamespace(thread_time=lambda: float(next(ticks)))
    monkeypatch.setattr(worker_module, "time", clock)
    engine = Engine(*pico)
    engine.add(Request([1, 2, 3], 2, grammar=Grammar.regex("a")))
    request = Request([1, 2, 3], 2, grammar=Grammar.regex("b"))
    with pytest.raises(EngineFullError) as refused:
        engine.add(request)
    assert str(refused.value) == "1 grammars are in use: call step() until a request has ended"
    while engine.has_work:
        engine.step()
    engine.add(request)


def test_clients_of_an_engine_in_a_thread_try_again() -> None:
    async def last(engine: AsyncEngine, request: Request) -> str | None:
        try:
            async for output in engine.stream(request):
                reason = output.finish_reason
        except EngineFullError as error:
            return str(error)
        return reason

    async def main() -> None:
        engine = AsyncEngine(lambda: Engine(*load("pico"), SETTINGS))
        await engine.start()
        try:
            tasks = []
            for waiting in (0, 1, 2):
                tasks.append(asyncio.create_task(last(engine, LONG)))
                while (engine.stats.running, engine.stats.waiting) != (1, waiting):
                    await asyncio.sleep(0.01)
            full = "2 requests are waiting: try again in 1 s"
            assert await last(engine, LONG) == full
            other = asyncio.create_task(last(engine, Request([1], 1, tenant="other")))
            assert await tasks.pop() == full
            for task in (other, *tasks):
                task.cancel()
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 60))
