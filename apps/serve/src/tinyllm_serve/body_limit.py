"""How much a client may send."""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinyllm_serve.api_error import as_api_error


class BodyLimit:
    """Middleware: refuses a body that is too long, at once where its length is announced."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        """Wrap an application.

        Args:
            app: what to wrap.
            limit: bytes.
        """
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, counting."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        too_long = HTTPException(
            413, f"the body is longer than the {self._limit:,} bytes that are allowed"
        )
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced[:20]) > self._limit:
            await as_api_error(too_long).response(scope, receive, send)
            return
        received = 0

        async def count() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise too_long
            return message

        await self._app(scope, count, send)
