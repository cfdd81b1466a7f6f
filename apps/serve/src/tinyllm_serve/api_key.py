"""Who may ask."""

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tinyllm_serve.api_error import ApiError

OPEN = ("/", "/health", "/ready", "/docs", "/openapi.json")
OPEN_FOLDERS = ("/page/", "/static-offline-docs/")


class ApiKey:
    """Middleware: lets those pass who send one of the keys, and all to what holds no secrets."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        """Wrap an application; without keys everybody passes."""
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        if scope["type"] == "http" and self._keys and not self._allowed(scope):
            error = ApiError(
                401,
                "no valid API key: send one as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        path: str = scope["path"]
        if path in OPEN or path.startswith(OPEN_FOLDERS):
            return True
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        # All keys are compared, each in constant time: how long it takes tells nothing.
        matches = [hmac.compare_digest(key, given.strip().encode()) for key in self._keys]
        return scheme.lower() == "bearer" and any(matches)
