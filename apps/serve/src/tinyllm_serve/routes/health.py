"""GET /health, /ready and /metrics."""

from typing import Literal

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0
from pydantic import BaseModel

from tinyllm_serve.service import Service, State


class Health(BaseModel):
    """That the process answers."""

    status: Literal["ok"] = "ok"
    state: State


def health_router(service: Service) -> APIRouter:
    """The endpoints, for a service."""
    router = APIRouter(tags=["operations"])

    @router.get("/health")
    async def health() -> Health:
        """200 as long as the process answers."""
        return Health(state=service.state)

    @router.get("/ready")
    async def ready() -> Health:
        """200 while requests are taken, 503 while the model is loaded and while draining."""
        service.check_ready()
        return Health(state=service.state)

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Counts and times, for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_PLAIN_1_0_0)

    return router
