"""The application that clients see: it passes requests on to replicas."""

import asyncio
import logging
from contextlib import aclosing, suppress

from fastapi import FastAPI
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinyllm_serve.api_error import RETRY_AFTER, ApiError
from tinyllm_serve.application import guard, tell_errors
from tinyllm_serve.disconnect import disconnected
from tinyllm_serve.event_stream import error_chunk
from tinyllm_serve.exchange import Answered, Asked
from tinyllm_serve.replicas.replica_set import ReplicaSet
from tinyllm_serve.request_beginnings import request_beginnings
from tinyllm_serve.routes.health import health_router
from tinyllm_serve.routes.page import page_router

CHARACTERS = 4
"""Of a token, roughly: a page of so many tokens is named by so many times its characters."""

_log = logging.getLogger(__name__)


def make_front(replicas: ReplicaSet) -> ASGIApp:
    """Put the endpoints together: health, counts and the page are here, all others in replicas."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(health_router(replicas))
    app.include_router(page_router())
    app.mount("/", Front(replicas))
    tell_errors(app)
    return guard(app, replicas.settings, replicas.metrics)


class Front:
    """Sends each request to a replica, and what comes back to the client."""

    def __init__(self, replicas: ReplicaSet) -> None:
        """Stand before some replicas."""
        self._replicas = replicas
        self._stride = CHARACTERS * replicas.settings.page_size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; the note of a request is what its replica wrote."""
        self._replicas.check_ready()
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:
            return
        asked = Asked(
            scope["method"],
            scope["path"],
            scope["query_string"],
            tuple(scope["headers"]),
            body,
            await asyncio.to_thread(request_beginnings, body, self._stride),
        )
        gone = asyncio.create_task(disconnected(receive))
        passing = asyncio.create_task(self._pass_on(asked, scope, send))
        try:
            await asyncio.wait({gone, passing}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            for task in (gone, passing):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    async def _pass_on(self, asked: Asked, scope: Scope, send: Send) -> None:
        """Send what a replica says; a replica that is lost has an error for its last word."""
        status: Message | None = None
        try:
            async with aclosing(self._replicas.ask(asked)) as messages:
                async for message in messages:
                    if isinstance(message, Answered):
                        scope["state"]["route"] = message.route
                        scope["state"]["note"].update(message.note)
                        continue
                    if message["type"] == "http.response.start":
                        status = message
                    await send(message)
        except (RayError, RayServeException) as error:
            _log.warning("a replica has failed", extra={"fields": {"error": type(error).__name__}})
            if status is None:
                raise _told(error) from error
            if not _is_stream(status):
                raise
            end = error_chunk(_told(error), named=asked.path == "/v1/responses")
            await send({"type": "http.response.body", "body": end, "more_body": False})


def _told(error: Exception) -> ApiError:
    """What a client is told when a replica could not answer."""
    after = {"Retry-After": str(RETRY_AFTER)}
    if isinstance(error, BackPressureError):
        message = "too many requests wait for a replica: try again later"
        return ApiError(429, message, code="engine_full", headers=after)
    message = "the replica that was answering is lost: ask again"
    return ApiError(503, message, code="replica_lost", headers=after)


def _is_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start["headers"]
    )
