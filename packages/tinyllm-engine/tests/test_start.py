"""The start of an AsyncEngine, which loads a model and reads the vocabulary of grammars."""

import asyncio
import time

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
