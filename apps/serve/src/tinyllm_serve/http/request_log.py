"""ASGI middleware that logs and counts each request."""

import logging
import time
from collections.abc import Sequence
from secrets import token_hex

from starlette.requests import Request
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinyllm_serve.http.disconnect import CLIENT_CLOSED_REQUEST
from tinyllm_serve.http.errors import MESSAGES, ApiError, api_of
from tinyllm_serve.metrics import Metrics

LogFields = dict[str, object]
"""Fields that an endpoint adds to the log line of a request: counts and names.

The text of prompts and answers is never logged.
"""

MAX_ID = 128
"""The most characters of a client's id of a request in the log."""

_log = logging.getLogger(__name__)


def log_fields(request: Request) -> LogFields:
    """Return the fields of a request's log line; the line is written when the request ends."""
    fields: LogFields = request.state.log_fields
    return fields


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the response of an error, and log its code. For middleware outside of the endpoints."""
    scope["state"]["log_fields"]["code"] = error.code
    await error.response(scope)(scope, receive, send)


def _client_id(scope: Scope) -> str | None:
    """Return the id that a client has given its request in a header; None without one."""
    headers = dict(scope["headers"])
    given: bytes = headers.get(b"x-request-id") or headers.get(b"x-client-request-id") or b""
    # Escapes and other bytes than ASCII could mislead readers of the log.
    text = "".join(each if " " <= each <= "~" else "?" for each in given[:MAX_ID].decode("latin-1"))
    return text or None


class RequestLog:
    """Log and count each request, and give it an id."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Sequence[BaseRoute]) -> None:
        """Wrap an application; `routes` name the paths of requests that reach no endpoint."""
        self._app = app
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and watch its response."""
        identity = f"req-{token_hex(8)}"
        fields: LogFields = {"client_id": _client_id(scope)}
        method = scope["method"][:40]  # a client may send 16,000 characters
        scope = {
            **scope,
            # uvicorn leaves out the body of the response to HEAD, by the method of its own scope.
            "method": "GET" if method == "HEAD" else method,
            "state": {**scope.get("state", {}), "log_fields": fields, "request_id": identity},
        }
        start = time.perf_counter()
        status, complete = CLIENT_CLOSED_REQUEST, False

        async def watch(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", []), (b"x-request-id", identity.encode())]
                if api_of(scope) is MESSAGES:
                    headers.append((b"request-id", identity.encode()))
                message = {**message, "headers": headers}
            complete = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        self._metrics.http_requests_in_flight.inc()
        try:
            await self._app(scope, receive, watch)
        finally:
            seconds = time.perf_counter() - start
            path = self._route_path(scope) or "other"
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

    def _route_path(self, scope: Scope) -> str | None:
        """Return the path of the endpoint for metrics and the log; None if no endpoint matches.

        The path of the request is not used, because each path that a client invents would become a
        new time series of the metrics.
        """
        route = scope.get("route")
        if isinstance(route, Route):
            return route.path
        # `Front` stores the path of the replica's endpoint.
        if replica_route := scope["state"].get("route"):
            return str(replica_route)
        # A middleware has answered before a route was chosen.
        for known in self._routes:
            if isinstance(known, Route) and known.matches(scope)[0] is not Match.NONE:
                return known.path
        return None
