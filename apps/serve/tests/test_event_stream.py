"""A stream that fails before its first event has the status of its error."""

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.http.sse import EventStream


def test_no_comment_precedes_the_error_of_a_stream_without_events() -> None:
    """The error and the first comment are due in the same turn of a loop that was busy."""
    sent: list[Message] = []

    async def events(failing: asyncio.Event) -> AsyncGenerator[dict[str, object], None]:
        await failing.wait()
        raise ApiError(503, "rank 1 has left", code="unavailable")
        yield {}

    async def receive() -> Message:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        await asyncio.sleep(0)

    async def serve() -> None:
        failing = asyncio.Event()
        scope = {"type": "http", "method": "GET", "path": "/v1/chat/completions", "headers": []}
        task = asyncio.create_task(EventStream(events(failing), 0.3)(scope, receive, send))
        await asyncio.sleep(0.05)
        asyncio.get_running_loop().call_later(0.001, failing.set)
        time.sleep(0.5)  # the loop stalls
        await task

    with pytest.raises(ApiError, match="rank 1 has left"):
        asyncio.run(serve())
    assert sent == []
