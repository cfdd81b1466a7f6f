"""Requests that were accepted before the shutdown, and are not in the engine yet."""

import asyncio
import time
from typing import Any

import httpx
import pytest
from tinyllm_serve.application import make_application
from tinyllm_serve.clients import Client
from tinyllm_serve.http.rate_limiter import BURST
from tinyllm_serve.routes import completions
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings


async def drained(service: Service, started: asyncio.Event, **body: object) -> httpx.Response:
    """Return the answer to a request. The server shuts down once the request has started."""
    await service.start()
    transport = httpx.ASGITransport(make_application(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        asked = asyncio.create_task(client.post("/v1/completions", json=body))
        await asyncio.wait_for(started.wait(), 30)
        service.drain()
        finished = asyncio.create_task(service.finish())
        refused = await client.post("/v1/completions", json=body)
        assert refused.status_code == 503
        answer = await asked
        await asyncio.wait_for(finished, 30)
        assert service.engine.closed == "the server is shutting down"
    await service.close()
    return answer


@pytest.mark.parametrize("stream", [True, False])
def test_answers_that_wait_for_the_rate_limiter_are_finished(stream: bool) -> None:
    prompts = int(BURST)  # the second choices wait

    async def test() -> httpx.Response:
        service, started = Service(Settings()), asyncio.Event()

        async def watch() -> None:
            while service.state == "loading" or not service.engine.stats.prompt_tokens:
                await asyncio.sleep(0.001)
            started.set()

        watching = asyncio.create_task(watch())
        async with service.rate_limiter.acquire(Client(tenant="another")):
            answer = await drained(
                service, started, prompt=["a"] * prompts, n=2, max_tokens=1, stream=stream
            )
        await watching
        return answer

    answer = asyncio.run(test())
    assert answer.status_code == 200
    assert answer.text.count('"finish_reason":"length"') == 2 * prompts
    assert '"error"' not in answer.text


def test_a_request_that_is_being_encoded_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare: Any = completions._prepare

    async def test() -> httpx.Response:
        started, loop = asyncio.Event(), asyncio.get_running_loop()

        def slow(*args: object) -> object:
            loop.call_soon_threadsafe(started.set)
            time.sleep(0.3)
            return prepare(*args)

        monkeypatch.setattr(completions, "_prepare", slow)
        return await drained(Service(Settings()), started, prompt="a", max_tokens=1)

    answer = asyncio.run(test())
    assert answer.status_code == 200, answer.text
