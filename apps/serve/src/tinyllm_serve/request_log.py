"""A line in the log for each request, and its counts and times."""

import logging
import time
from secrets import token_hex

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinyllm_serve.disconnect import CLIENT_CLOSED
from tinyllm_serve.metrics import Metrics
from tinyllm_serve.request_note import Note

_log = logging.getLogger(__name__)


class RequestLog:
    """Middleware around everything: names each request, and writes down how it ended."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Wrap an application."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and watch what comes back."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        identity = f"req-{token_hex(8)}"
        note: Note = {}
        scope["state"] = {**scope.get("state", {}), "note": note}
        began = time.perf_counter()
        status, complete = CLIENT_CLOSED, False

        async def watch(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", []), (b"x-request-id", identity.encode())]
                message = {**message, "headers": headers}
            complete = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        self._metrics.in_flight.inc()
        try:
            await self._app(scope, receive, watch)
        finally:
            seconds = time.perf_counter() - began
            path = _route(scope) or "other"
            if not complete:
                status = CLIENT_CLOSED
            self._metrics.in_flight.dec()
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.request_seconds.labels(path).observe(seconds)
            fields = {
                "id": identity,
                "method": scope["method"],
                "path": path,
                "status": status,
                "seconds": round(seconds, 4),
                **{name: value for name, value in note.items() if value is not None},
            }
            _log.info("request", extra={"fields": fields})


def _route(scope: Scope) -> str | None:
    """The route's own path: paths that clients make up would each become a time series."""
    route = scope.get("route")
    if isinstance(route, Route):
        return route.path
    told: str | None = scope["state"].get("route")  # by the replica that has answered
    return told
