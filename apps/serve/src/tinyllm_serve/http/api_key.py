"""ASGI middleware that finds the client of a request: by its API key, or by its connection."""

import hmac
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack

from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tinyllm_serve.clients import Client
from tinyllm_serve.http.body_limit import announced_length
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.http.rate_limiter import BODY_UNIT, RateLimiter
from tinyllm_serve.http.request_log import refuse

OPEN_PATHS = ("/", "/health", "/ready", "/docs", "/openapi.json")
"""Paths that need no API key for GET and HEAD without a body."""

OPEN_FOLDERS = ("/page/", "/static-offline-docs/")
"""Prefixes of further paths of this kind."""

BEARER = HTTPBearer(auto_error=False, description="A key of --api-key or --api-key-file.")
"""The security scheme of all endpoints but `OPEN_PATHS`; `/docs` offers it as "Authorize"."""

MAX_COUNTED = 10_000_000
"""The most bytes of a body that are charged as work."""

UNKNOWN_LENGTH = 1_000_000
"""The bytes that are charged for a body whose length is not announced."""

RETRY_AFTER_KEY_LIMIT = 1
"""Seconds after which a client with too many requests in progress may retry."""


def client_of(request: Request) -> Client:
    """Return the client that sent a request."""
    client: Client = request.state.client
    return client


class Anonymous:
    """Make each connection a client."""

    def __init__(self, app: ASGIApp, max_priority: int, rate_limiter: RateLimiter) -> None:
        """Wrap an application."""
        self._app = app
        self._max_priority = max_priority
        self._rate_limiter = rate_limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        host, port = scope.get("client") or ("", 0)
        client = Client(tenant=f"{host}:{port}", max_priority=self._max_priority)
        scope["state"] = {**scope["state"], "client": client}
        await _limit_rate(self._app, self._rate_limiter, scope, receive, send)


class ApiKey:
    """Refuse requests without a valid key, except to paths that hold no secrets.

    This is a middleware and not a FastAPI dependency, because FastAPI parses the body before it
    calls dependencies: a client without a key could send bodies of 10 MB to be parsed.
    """

    def __init__(
        self, app: ASGIApp, clients: Mapping[str, Client], rate_limiter: RateLimiter
    ) -> None:
        """Wrap an application; `clients` maps each key to its client."""
        self._app = app
        self._rate_limiter = rate_limiter
        self._clients = [(key.encode(), client) for key, client in clients.items()]
        self._in_progress: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401, or 429 if the client has too many requests."""
        if _is_open(scope):
            await self._app(scope, receive, send)
            return
        client = await self._client(scope)
        if client is None:
            error = ApiError(
                401,
                "no valid API key: send one as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await refuse(error, scope, receive, send)
            return
        scope["state"]["log_fields"]["key"] = client.name
        scope["state"] = {**scope["state"], "client": client}
        if client.limit is not None and self._in_progress[client.name] >= client.limit:
            error = ApiError(
                429,
                f"this API key has reached its limit of requests in progress ({client.limit}): "
                "wait until one has ended",
                code="key_limit_exceeded",
                headers={"Retry-After": str(RETRY_AFTER_KEY_LIMIT)},
            )
            await refuse(error, scope, receive, send)
            return
        self._in_progress[client.name] += 1
        try:
            await _limit_rate(self._app, self._rate_limiter, scope, receive, send)
        finally:
            self._in_progress[client.name] -= 1

    async def _client(self, scope: Scope) -> Client | None:
        """Return the client of a request's key."""
        request = Request(scope)
        given = await BEARER(request)
        # Anthropic's clients send a key as x-api-key.
        text = request.headers.get("x-api-key") if given is None else given.credentials
        if text is None:
            return None
        key = text.strip().encode()
        # Every key is compared, in constant time, so that the time tells nothing about the keys.
        found = [client for each, client in self._clients if hmac.compare_digest(each, key)]
        return found[0] if found else None


def _is_open(scope: Scope) -> bool:
    """Return True for a request that needs no key.

    Requests with bodies need one, because with replicas the front reads the body of a request
    before a replica chooses the endpoint.
    """
    path: str = scope["path"]
    if path not in OPEN_PATHS and not path.startswith(OPEN_FOLDERS):
        return False
    has_body = announced_length(scope) > 0 or "transfer-encoding" in Headers(scope=scope)
    return scope["method"] in ("GET", "HEAD") and not has_body


async def _limit_rate(
    app: ASGIApp, rate_limiter: RateLimiter, scope: Scope, receive: Receive, send: Send
) -> None:
    """Pass a request on once the rate limit of its client allows it, or answer 429."""
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(
                rate_limiter.acquire(scope["state"]["client"], _units(scope))
            )
        except ApiError as error:
            await refuse(error, scope, receive, send)
            return
        await app(scope, receive, send)


def _units(scope: Scope) -> float:
    """Return the units of work of a request: one, and more for a long body."""
    length = announced_length(scope)
    if "transfer-encoding" in Headers(scope=scope):
        length = UNKNOWN_LENGTH
    # `BodyLimit` refuses a body that is too long, without reading it.
    return 1.0 + min(length, MAX_COUNTED) / BODY_UNIT
