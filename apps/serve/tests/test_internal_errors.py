"""Clients and /health do not get the text of an internal error."""

import asyncio

import httpx
import pytest
from tinyllm_engine import Engine
from tinyllm_serve.application import make_application
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings


def test_the_text_of_a_failure_stays_in_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_engine: Engine) -> None:
        raise ValueError("a part of a prompt")

    async def answers() -> list[httpx.Response]:
        service = Service(Settings())
        await service.start()
        monkeypatch.setattr(Engine, "step", fail)
        transport = httpx.ASGITransport(make_application(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = {"messages": [{"role": "user", "content": "hello"}]}
            chat = await client.post("/v1/chat/completions", json=body)
            return [chat, await client.get("/health"), await client.get("/ready")]

    for answer in asyncio.run(answers()):
        assert answer.status_code == 503
        assert "a part of a prompt" not in answer.text
        assert "the engine has failed: its log says why" in answer.text
