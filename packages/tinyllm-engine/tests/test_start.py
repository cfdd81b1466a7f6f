"""The start of an AsyncEngine, which loads a model and reads the vocabulary of grammars."""

import asyncio
import time
from contextlib import aclosing

import pytest
from tinyllm_engine import AsyncEngine, Engine, EngineClosedError, Request
from tinyllm_engine.grammar.compiler import GrammarCompiler
from tinyllm_qwen import load


def make() -> Engine:
    return Engine(*load("pico"))


def test_start_raises_the_error_of_loading() -> None:
    def fails() -> Engine:
        raise ValueError("no such model")

    async def main() -> None:
        with pytest.raises(ValueError, match="no such model"):
            await AsyncEngine(fails).start()

    asyncio.run(main())


def test_start_waits_until_the_vocabulary_of_grammars_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading holds Python's lock, so that it would stall a server that is ready."""
    is_read: list[bool] = []

    def read(_: GrammarCompiler) -> None:
        time.sleep(0.3)
        is_read.append(True)

    async def main() -> None:
        engine = AsyncEngine(make)
        await engine.start()
        try:
            assert is_read
        finally:
            await engine.close()

    monkeypatch.setattr(GrammarCompiler, "read_vocabulary", read)
    asyncio.run(main())


def test_start_raises_the_error_of_reading_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: GrammarCompiler) -> None:
        raise ValueError("two tokens have the same bytes")

    monkeypatch.setattr(GrammarCompiler, "read_vocabulary", read)
    with pytest.raises(ValueError, match="the same bytes"):
        asyncio.run(AsyncEngine(make).start())


def test_an_engine_that_was_not_started_refuses_requests(prompts: list[list[int]]) -> None:
    async def main() -> None:
        with pytest.raises(EngineClosedError, match="not started"):
            await anext(AsyncEngine(make).stream(Request(prompts[0])))

    asyncio.run(main())


def test_an_engine_is_started_once(prompts: list[list[int]]) -> None:
    async def main() -> None:
        engine = AsyncEngine(make)
        await engine.start()
        with pytest.raises(RuntimeError, match=r"^start: expected one call before `close`"):
            await engine.start()
        async with aclosing(engine.stream(Request(prompts[0], 2))) as outputs:
            await anext(outputs)
        await engine.close()
        with pytest.raises(RuntimeError, match=r"^start: expected one call before `close`"):
            await engine.start()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_an_engine_that_is_closed_before_its_start_has_ended() -> None:
    async def main() -> None:
        engine = AsyncEngine(make)
        await engine.close()
        await engine.ended()
        assert engine.closed == "the server is shutting down"
        with pytest.raises(RuntimeError, match=r"^start: "):
            await engine.start()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_another_event_loop_is_refused(prompts: list[list[int]]) -> None:
    engine = AsyncEngine(make)
    asyncio.run(engine.start())

    async def main() -> None:
        try:
            with pytest.raises(RuntimeError, match=r"^stream: expected the event loop of `start`"):
                await asyncio.wait_for(anext(engine.stream(Request(prompts[0], 2))), 20)
        finally:
            await engine.close()
        await engine.ended()

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_thread_of_an_event_loop_that_has_ended_ends(prompts: list[list[int]]) -> None:
    engine = AsyncEngine(make)

    async def main() -> None:
        await engine.start()
        async for _ in engine.stream(Request(prompts[0], 500, ignore_end=True)):
            return

    asyncio.run(main())
    assert engine._thread is not None
    engine._calls.put(None)
    engine._thread.join(20)
    assert not engine._thread.is_alive()
