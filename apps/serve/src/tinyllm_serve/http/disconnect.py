"""Clients that disconnect while their request is computed."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Receive

from tinyllm_serve.http.body_limit import release_body
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


async def while_connected(request: Request, work: Coroutine[None, None, T] | asyncio.Task[T]) -> T:
    """Run a coroutine or wait for a task, and cancel it if the client disconnects.

    The memory of the request's body is returned before.

    Raises:
        ApiError: 499 if the client has disconnected.
    """
    release_body(request.scope)
    gone = asyncio.create_task(disconnected(request.receive))
    task = asyncio.ensure_future(work)
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
