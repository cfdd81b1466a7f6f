"""Clients that disconnect while their request is computed."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Receive

from tinyllm_serve.http.errors import ApiError

T = TypeVar("T")

CLIENT_CLOSED_REQUEST = 499
"""The status that nginx logs for a client that has disconnected. No client receives it."""


def client_closed_request() -> ApiError:
    """Return the error of a client that has disconnected, which only the log shows."""
    return ApiError(CLIENT_CLOSED_REQUEST, "the client has disconnected")


async def disconnected(receive: Receive) -> None:
    """Wait until the client has disconnected. The request's body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(request: Request, work: Callable[[], Coroutine[object, object, T]]) -> T:
    """Run a coroutine function, and cancel it if the client disconnects.

    It is not called if the client has disconnected before.

    Raises:
        ApiError: 499 if the client has disconnected.
    """
    gone = asyncio.create_task(disconnected(request.receive))

    async def start() -> T:
        if gone.done():  # the task that was created first has run first
            raise client_closed_request()
        return await work()

    task = asyncio.create_task(start())
    try:
        await asyncio.wait({gone, task}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise client_closed_request()
        return task.result()
    finally:
        await cancel(gone, task)


async def cancel(*tasks: asyncio.Task[object]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
