"""GET /health, /ready and /metrics."""

from typing import Literal

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0
from pydantic import BaseModel

from tinyllm_serve.server import Served, State


class Health(BaseModel):
    """The state of a process that answers."""

    status: Literal["ok"] = "ok"
    state: State


def health_router(served: Served) -> APIRouter:
    """Make the endpoints of a service, or of its replicas, which need no key."""
    router = APIRouter(tags=["operations"])

    @router.get("/health")
    async def health() -> Health:
        """Answer 200 while the process works, 503 once the engine has failed."""
        served.check_alive()
        return Health(state=served.state)

    @router.get("/ready")
    async def ready() -> Health:
        """Answer 200 while requests are accepted, 503 while loading and while shutting down."""
        served.check_ready()
        return Health(state=served.state)

    return router


def metrics_router(served: Served) -> APIRouter:
    """Make the endpoint of the metrics, which needs a key where there is one."""
    router = APIRouter(tags=["operations"])

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Return counts and times for Prometheus."""
        return Response(await served.metrics_text(), media_type=CONTENT_TYPE_PLAIN_1_0_0)

    return router
