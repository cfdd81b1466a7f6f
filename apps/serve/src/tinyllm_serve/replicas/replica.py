"""One copy of the server, in a process of Ray's."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing

from ray import serve
from starlette.routing import Route
from starlette.types import Message

from tinyllm_serve.application import make_endpoints
from tinyllm_serve.exchange import Answered, Asked, exchange
from tinyllm_serve.json_log import begin_log
from tinyllm_serve.request_note import Note
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings

_log = logging.getLogger(__name__)


class Replica:
    """A model with an engine of its own, and all endpoints."""

    def __init__(self, settings: Settings, threads: int) -> None:
        """Prepare; the first check of health loads the model, and requests come after it.

        Args:
            settings: of the server.
            threads: that the kernels take, unless TINYLLM_NUM_THREADS says something else.
        """
        os.environ.setdefault("TINYLLM_NUM_THREADS", str(threads))
        begin_log()
        self._service = Service(settings)
        self._endpoints = make_endpoints(self._service)
        self._loading = asyncio.Lock()

    async def check_health(self) -> None:
        """Load the model where that has not been done.

        Raises:
            ApiError: if the engine has failed; Ray replaces the replica then.
        """
        async with self._loading:
            if self._service.state == "loading":
                await self._service.start()
        self._service.check_ready()

    async def respond(self, asked: Asked) -> AsyncGenerator[Message | Answered, None]:
        """Answer a request: the messages of ASGI, and before the last what is known of it."""
        note: Note = {}
        scope = asked.scope(note)
        try:
            async with aclosing(exchange(self._endpoints, scope, asked.body)) as messages:
                async for message in messages:
                    if message["type"] == "http.response.body" and not message.get("more_body"):
                        route = scope.get("route")
                        yield Answered(route.path if isinstance(route, Route) else None, note)
                    yield message
        except Exception:
            _log.exception("a request has failed")  # its client was told

    async def metrics(self) -> tuple[str, bytes]:
        """The replica's name, and its counts."""
        replica = serve.get_replica_context().replica_id.unique_id
        return replica, await self._service.metrics_text()
