"""Streams whose clients do not read, or read slowly."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from starlette.requests import Request
from tinyllm_engine import async_engine
from tinyllm_serve.clients import Client
from tinyllm_serve.generation import generate
from tinyllm_serve.generation.generate import AnswerToken, Generation
from tinyllm_serve.generation.parsers import PlainText
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.protocol.completions import CompletionRequest
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings

LIMIT = 40


@pytest.mark.parametrize("answers", [1, 4])
def test_a_stream_that_is_not_read_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    monkeypatch.setattr(async_engine, "MAX_UNREAD_OUTPUTS", LIMIT)
    monkeypatch.setattr(generate, "MAX_UNREAD_OUTPUTS", LIMIT)
    monkeypatch.setattr(generate, "MAX_UNREAD_PER_ANSWER", 1)

    async def test() -> int:
        service = Service(Settings())
        await service.start()
        body = CompletionRequest(
            prompt="a", n=answers, max_tokens=500, ignore_eos=True, stream=True
        )
        scope = {"type": "http", "state": {"log_fields": {}, "client": Client()}}
        generation = Generation(
            service,
            body,
            Request(scope),
            [[5]],
            PlainText,
            max_tokens=body.max_tokens,
            default_tokens=None,
            grammar=None,
            logprobs=None,
        )
        received = 0

        async def read(tokens: AsyncGenerator[AnswerToken, None]) -> None:
            nonlocal received
            async for _ in tokens:
                received += 1

        async with aclosing(generation.tokens()) as tokens:
            await anext(tokens)
            while service.engine.stats.running:  # the client does not read
                await asyncio.sleep(0.01)
            assert service.engine.stats.pages_used == 0
            with pytest.raises(ApiError, match="unread tokens: read it faster") as error:
                await read(tokens)
        assert error.value.code == "unread_output"
        await service.close()
        return received

    assert LIMIT <= asyncio.run(test()) <= LIMIT + 8
