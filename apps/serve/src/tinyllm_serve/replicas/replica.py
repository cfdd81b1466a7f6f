"""One replica: a model with an engine and all endpoints, in a process of Ray."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing

from ray import serve
from starlette.routing import Route
from starlette.types import Message

from tinyllm_serve.application import make_replica_endpoints
from tinyllm_serve.http.malloc import return_large_blocks
from tinyllm_serve.http.request_log import LogFields
from tinyllm_serve.json_log import configure_log
from tinyllm_serve.replicas.exchange import ReplicaRequest, RequestSummary, exchange
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings

_log = logging.getLogger(__name__)


class Replica:
    """A model with an engine and all endpoints."""

    def __init__(self, settings: Settings, root: str, threads: int) -> None:
        """Prepare. Ray's first health check loads the model, before any request comes.

        `root` is the model as the operator has named it. The kernels use `threads` threads, unless
        TINYLLM_NUM_THREADS is set.
        """
        os.environ.setdefault("TINYLLM_NUM_THREADS", str(threads))
        configure_log()
        return_large_blocks()
        self._deployed = settings, root
        self._service = Service(settings, root=root)
        self._endpoints = make_replica_endpoints(self._service)
        self._loading = asyncio.Lock()

    async def check_health(self) -> None:
        """Load the model, if it is not loaded yet.

        Raises:
            ApiError: if the engine has failed. Ray then replaces the replica.
        """
        async with self._loading:
            if self._service.state == "loading":
                await self._service.start()
        self._service.check_ready()

    async def respond(
        self, request: ReplicaRequest
    ) -> AsyncGenerator[Message | RequestSummary, None]:
        """Yield the ASGI messages of a response, and a summary before the last message."""
        fields: LogFields = {}
        scope = request.scope(fields)
        try:
            async with aclosing(exchange(self._endpoints, scope, request)) as messages:
                async for message in messages:
                    if message["type"] == "http.response.body" and not message.get("more_body"):
                        route = scope.get("route")
                        path = route.path if isinstance(route, Route) else None
                        yield RequestSummary(path, fields)
                    yield message
        except Exception:
            _log.exception("a request has failed")  # the client has got an error

    def deployed(self) -> tuple[Settings, str]:
        """Return the settings, and the model as the operator has named it."""
        return self._deployed

    async def metrics(self) -> tuple[str, bytes]:
        """Return the replica's name and its metrics."""
        replica = serve.get_replica_context().replica_id.unique_id
        return replica, await self._service.metrics_text()
