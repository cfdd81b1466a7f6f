"""ASGI middleware that limits the bytes and the time of request bodies."""

import asyncio

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinyllm_serve.http.errors import ApiError, as_api_error
from tinyllm_serve.http.request_log import refuse

FREE_BYTES = 1 << 16
"""Bytes of each body that do not count for the limit on all bodies. Short requests are therefore
answered even if long bodies take all of the memory. The number of connections limits these bytes.
"""

RETRY_AFTER_BODIES = 1
"""Seconds after which a client may retry while long bodies take all of the memory."""


class BodyHold:
    """The part of the memory of all bodies that one body takes, until it is released."""

    def __init__(self, limit: "BodyLimit") -> None:
        """Take nothing yet."""
        self._limit = limit
        self._held = 0

    def grow(self, received: int) -> None:
        """Take the memory of a body of which `received` bytes have come.

        Raises:
            ApiError: 503 if all bodies together have too many bytes.
        """
        more = max(0, received - FREE_BYTES) - self._held
        if more > 0:
            if self._limit.used + more > self._limit.memory:
                raise ApiError(
                    503,
                    "the server holds too many long bodies and results: try again later",
                    code="unavailable",
                    headers={"Retry-After": str(RETRY_AFTER_BODIES)},
                )
            self._limit.used += more
            self._held += more

    def release(self) -> None:
        """Return the memory."""
        self._limit.used -= self._held
        self._held = 0


def announced_length(scope: Scope) -> int:
    """Return the bytes of a body that Content-Length announces, otherwise 0."""
    announced = Headers(scope=scope).get("content-length", "0")
    # 20 digits exceed every limit, and int() raises ValueError for thousands of digits.
    return int(announced[:20]) if announced.isdecimal() else 0


def release_body(scope: Scope) -> None:
    """Return the memory of a request's body, once its prompt is made."""
    hold = scope.get("state", {}).get("body_hold")
    if isinstance(hold, BodyHold):
        hold.release()


def hold_memory(scope: Scope, size: int) -> None:
    """Take the memory of a result until its response has ended, after `release_body`.

    Raises:
        ApiError: 503 if all bodies and results together have too many bytes.
    """
    hold = scope.get("state", {}).get("body_hold")
    if isinstance(hold, BodyHold):
        hold.grow(size)


class BodyLimit:
    """Refuse bodies that are too long, take too long, or exceed the memory of all bodies.

    A body whose Content-Length is too large is refused before any of it is read. Any other body is
    refused as soon as more bytes than the limit have been received.

    Attributes:
        memory: the most bytes of all bodies that are being received or wait to be parsed.
        used: their bytes now.
    """

    def __init__(self, app: ASGIApp, limit: int, memory: int, seconds: float) -> None:
        """Wrap an application.

        Args:
            app: the application.
            limit: the maximum number of bytes of a body.
            memory: the maximum number of bytes of all bodies in memory.
            seconds: the time in which a body must be received.
        """
        self._app = app
        self._limit = limit
        self.memory, self.used = memory, 0
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count the bytes of its body."""
        too_long = HTTPException(
            413, f"the body is longer than the {self._limit:,} bytes that are allowed"
        )
        if announced_length(scope) > self._limit:
            await refuse(as_api_error(too_long), scope, receive, send)
            return
        if Headers(scope=scope).get("content-encoding", "identity") != "identity":
            error = HTTPException(415, "Content-Encoding: send the body without compression")
            await refuse(as_api_error(error), scope, receive, send)
            return
        received, complete = 0, False
        deadline = asyncio.get_running_loop().time() + self._seconds
        hold = BodyHold(self)
        scope["state"] = {**scope.get("state", {}), "body_hold": hold}

        async def count() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise ApiError(
                    408, f"the body has not come within {self._seconds:g} seconds"
                ) from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body")
            if received > self._limit:
                raise too_long  # inside the endpoint; the application's error handler answers
            hold.grow(received)
            return message

        try:
            await self._app(scope, count, send)
        finally:
            hold.release()
