"""Clients that go away."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Receive

from tinyllm_serve.api_error import ApiError

T = TypeVar("T")

CLIENT_CLOSED = 499
"""nginx's status for it: nobody gets to see it but the log."""


async def disconnected(receive: Receive) -> None:
    """Wait until the client has gone away; its request has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(request: Request, work: Coroutine[None, None, T]) -> T:
    """Do work for as long as the client waits for it.

    Raises:
        ApiError: 499 when it has gone away; the work has been cancelled then.
    """
    gone = asyncio.create_task(disconnected(request.receive))
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({gone, task}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(CLIENT_CLOSED, "the client has gone away")
        return task.result()
    finally:
        for each in (gone, task):
            each.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await each
