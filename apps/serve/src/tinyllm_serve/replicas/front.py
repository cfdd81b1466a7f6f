"""The listening process of `serve --ray`: it passes requests on to replicas."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import FrameType
from typing import NoReturn

from fastapi import FastAPI
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tinyllm_cli.messages import notice

from tinyllm_serve.application import add_error_handlers, add_middleware
from tinyllm_serve.clients import Client
from tinyllm_serve.errors import ServeError
from tinyllm_serve.http.body import process_body, read_body
from tinyllm_serve.http.body_limit import release_body
from tinyllm_serve.http.disconnect import cancel, disconnected
from tinyllm_serve.http.errors import RETRY_AFTER_UNAVAILABLE, ApiError
from tinyllm_serve.http.rate_limiter import RateLimiter
from tinyllm_serve.http.sse import lost_stream_end
from tinyllm_serve.json_log import log_event
from tinyllm_serve.replicas.cluster import deploy, deployed, join_cluster, stop_cluster
from tinyllm_serve.replicas.exchange import ReplicaRequest, RequestSummary
from tinyllm_serve.replicas.local_settings import local_settings
from tinyllm_serve.replicas.prefix_map import prefix_hashes
from tinyllm_serve.replicas.replica_set import ReplicaSet
from tinyllm_serve.routes import health, page
from tinyllm_serve.server import serve
from tinyllm_serve.settings import Settings
from tinyllm_serve.signals import ENDING

CHARACTERS_PER_TOKEN = 4
"""The approximate length of a token, to hash prefixes about once per page of tokens."""

_log = logging.getLogger(__name__)


def make_front(replicas: ReplicaSet) -> ASGIApp:
    """Make the application. Health, metrics and the page are here, other endpoints in replicas."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    for router in (health.router, health.metrics_router, page.router):
        app.include_router(router)
    app.state.served = replicas
    app.mount("/", Front(replicas))
    add_error_handlers(app)
    return add_middleware(app, replicas.settings, replicas.metrics, RateLimiter())


def run_replicas(settings: Settings) -> None:
    """Serve replicas until a signal comes, or update the replicas of a running server.

    Raises:
        UsageError: if an option is not allowed with replicas.
        ServeError: if the address is not available, or the replicas cannot be started.
    """
    if settings.update:
        _update(settings)
    else:
        replicas = ReplicaSet(settings)
        asyncio.run(serve(settings, replicas, make_front(replicas)))


def _update(settings: Settings) -> None:
    """Update the replicas of a running server. After a failure, deploy the version before again."""
    local = local_settings(settings)
    try:
        with join_cluster():
            for number in ENDING:  # Ray has installed handlers of its own
                signal.signal(number, _leave_update)
            before = deployed()
            try:
                deploy(local, settings.model)
            except ServeError:
                if before is not None:
                    deploy(*before)  # Ray replaces no lost replica of a version that cannot start
                raise
    finally:
        stop_cluster()
    log_event("updated", model=settings.model_names[0], replicas=settings.replica_range[0])


def _leave_update(_number: int, _frame: FrameType | None) -> NoReturn:
    """End the process of an update, which is in the hands of the server."""
    notice("--update: interrupted; the server may go on replacing its replicas", "serve")
    os._exit(1)


class Front:
    """Send each request to a replica, and its response to the client."""

    def __init__(self, replicas: ReplicaSet) -> None:
        """Prepare to send requests to some replicas."""
        self._replicas = replicas
        self._stride = CHARACTERS_PER_TOKEN * replicas.settings.page_size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        self._replicas.check_ready()
        try:
            messages = self._replicas.send(await self._read(scope, receive))
        except ClientDisconnect:
            return
        release_body(scope)
        gone = asyncio.create_task(disconnected(receive))
        passing = asyncio.create_task(_pass_on(messages, scope, send))
        try:
            await asyncio.wait({gone, passing}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            await cancel(gone, passing)

    async def _read(self, scope: Scope, receive: Receive) -> ReplicaRequest:
        """Read a request; raises ClientDisconnect."""
        body = await read_body(Request(scope, receive))
        return ReplicaRequest(
            scope["method"],
            scope["path"],
            scope["query_string"],
            tuple(scope["headers"]),
            body,
            scope["state"].get("client", Client()),  # open paths have none
            await process_body(prefix_hashes, body, self._stride),
            scope["state"]["request_id"],
        )


async def _pass_on(
    messages: AsyncGenerator[Message | RequestSummary, None], scope: Scope, send: Send
) -> None:
    """Send the messages of a replica, or an error if the replica is lost."""
    start: Message | None = None
    first = latest = b""  # of the events of a stream
    try:
        async with aclosing(messages):
            async for message in messages:
                if isinstance(message, RequestSummary):
                    scope["state"]["route"] = message.route
                    scope["state"]["log_fields"].update(message.log_fields)
                    continue
                if message["type"] == "http.response.start":
                    start = message
                sent: bytes = message.get("body", b"")
                if not sent.startswith(b":"):  # comments are no events
                    first, latest = first or sent, sent
                await send(message)
    except (ApiError, RayError, RayServeException) as error:
        refusal = error if isinstance(error, ApiError) else _as_api_error(error)
        if not isinstance(error, ApiError | BackPressureError):
            facts = {"id": scope["state"]["request_id"], "error": type(error).__name__}
            _log.warning("a replica has failed", extra={"fields": facts})
        if start is None:
            raise refusal from error
        scope["state"]["log_fields"]["code"] = refusal.code
        kind = Headers(raw=start["headers"]).get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise  # a partial response cannot report an error, so the connection is closed
        end = lost_stream_end(refusal, scope, first, latest)
        await send({"type": "http.response.body", "body": end, "more_body": False})


def _as_api_error(error: Exception) -> ApiError:
    """Return the client's error for a replica that could not answer."""
    headers = {"Retry-After": str(RETRY_AFTER_UNAVAILABLE)}
    if isinstance(error, BackPressureError):
        message = "too many requests wait for a replica: try again later"
        return ApiError(429, message, code="engine_full", headers=headers)
    message = "the replica that computed the answer is lost: send the request again"
    return ApiError(503, message, code="replica_lost", headers=headers)
