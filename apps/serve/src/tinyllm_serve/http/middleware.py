"""ASGI middleware around the endpoints, in this order: log, Host, CORS, API key, body limit.

All scopes are HTTP requests, because the server runs without lifespan events and WebSockets.
"""

import logging
import time
from collections.abc import Sequence
from secrets import token_hex
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinyllm_serve.http.api_key import Anonymous, ApiKey
from tinyllm_serve.http.body_limit import BodyLimit
from tinyllm_serve.http.disconnect import CLIENT_CLOSED_REQUEST
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.http.loopback import is_loopback
from tinyllm_serve.http.pace import Pacer
from tinyllm_serve.metrics import Metrics
from tinyllm_serve.settings import Settings

EXPOSED_HEADERS = ("x-request-id", "Retry-After")
"""Headers of responses that scripts of other origins may read."""

LogFields = dict[str, object]
"""Fields that an endpoint adds to the log line of a request: counts and names.

The text of prompts and answers is never logged.
"""

_log = logging.getLogger(__name__)


def add_middleware(app: ASGIApp, settings: Settings, metrics: Metrics, pacer: Pacer) -> ASGIApp:
    """Wrap the endpoints in all middleware."""
    app = BodyLimit(app, settings.max_body, settings.max_body_memory, settings.timeout_body)
    if settings.has_keys:
        app = ApiKey(app, settings.clients(), pacer)
    else:
        app = Anonymous(app, settings.max_priority, pacer)
    if settings.allowed_origins:
        # Outside of the key check, because a browser sends its preflight requests without a key.
        app = CORSMiddleware(
            app,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST"],
            # OpenAI's JavaScript SDK sends some ten headers of its own, such as x-stainless-os. The
            # server reads none of them, and the origin decides who may send requests.
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    if settings.host_names is not None:
        app = HostCheck(app, settings.host_names)
    return RequestLog(app, metrics)


def log_fields(request: Request) -> LogFields:
    """Return the fields of a request's log line; the line is written when the request ends."""
    fields: LogFields = request.state.log_fields
    return fields


class RequestLog:
    """Log and count each request, and give it an id."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Wrap an application."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and watch its response."""
        identity = f"req-{token_hex(8)}"
        fields: LogFields = {}
        method = scope["method"]
        scope = {
            **scope,
            # uvicorn leaves out the body of the response to HEAD, by the method of its own scope.
            "method": "GET" if method == "HEAD" else method,
            "state": {**scope.get("state", {}), "log_fields": fields},
        }
        start = time.perf_counter()
        status, complete = CLIENT_CLOSED_REQUEST, False

        async def watch(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", []), (b"x-request-id", identity.encode())]
                message = {**message, "headers": headers}
            complete = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        self._metrics.http_requests_in_flight.inc()
        try:
            await self._app(scope, receive, watch)
        finally:
            seconds = time.perf_counter() - start
            path = _route_path(scope) or "other"
            if not complete:  # counts as a disconnect, even if the status was sent
                status = CLIENT_CLOSED_REQUEST
            self._metrics.http_requests_in_flight.dec()
            self._metrics.http_requests.labels(path, str(status)).inc()
            self._metrics.http_request_duration.labels(path).observe(seconds)
            line = {
                "id": identity,
                "method": method,
                "path": path,
                "status": status,
                "seconds": round(seconds, 4),
                **{name: value for name, value in fields.items() if value is not None},
            }
            _log.info("request", extra={"fields": line})


class HostCheck:
    """Refuse requests whose Host header is not a name of this server.

    A web page may give its own name the address 127.0.0.1 (DNS rebinding). The browser then
    treats a server on this machine as the page's own: the page can send requests to the server and
    read the responses. Such requests still have the page's name in their Host header.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        """Wrap an application.

        Args:
            app: the application.
            names: allowed host names. Loopback names, such as localhost, are always allowed.
        """
        self._app = app
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403."""
        host = Headers(scope=scope).get("host")
        # A request without Host is HTTP/1.0, which no browser speaks.
        if host is None or self._allowed(host):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            403,
            f"Host: expected a name of this server, got {host[:200]!r}: start the server with "
            "--allowed-host NAME to allow another name",
            code="host_not_allowed",
        )
        await error.response(scope, receive, send)

    def _allowed(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name is not None and (name in self._names or is_loopback(name))


def _route_path(scope: Scope) -> str | None:
    """Return the path of the endpoint for metrics and the log; None if no endpoint matches.

    The path of the request is not used, because each path that a client invents would become a new
    time series of the metrics.
    """
    route = scope.get("route")
    if isinstance(route, Route):
        return route.path
    # `Front` stores the path of the replica's endpoint.
    replica_route: str | None = scope["state"].get("route")
    return replica_route
