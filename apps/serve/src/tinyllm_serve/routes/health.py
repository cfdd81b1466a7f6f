"""GET /health, /ready and /metrics."""

from typing import Literal, Protocol, runtime_checkable

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0
from pydantic import BaseModel

from tinyllm_serve.served import State


class Health(BaseModel):
    """That the process answers."""

    status: Literal["ok"] = "ok"
    state: State


@runtime_checkable
class Operated(Protocol):
    """What the endpoints ask."""

    @property
    def state(self) -> State:
        """Requests are taken only when it is "ready"."""

    def check_alive(self) -> None:
        """Raises an `ApiError` if nothing can be answered any more."""

    def check_ready(self) -> None:
        """Raises an `ApiError`, unless requests are taken."""

    async def metrics_text(self) -> bytes:
        """All counts in Prometheus's format."""


def health_router(operated: Operated) -> APIRouter:
    """The endpoints, for a service or for replicas of it."""
    router = APIRouter(tags=["operations"])

    @router.get("/health")
    async def health() -> Health:
        """200 as long as the process answers, 503 once the engine has failed."""
        operated.check_alive()
        return Health(state=operated.state)

    @router.get("/ready")
    async def ready() -> Health:
        """200 while requests are taken, 503 while the model is loaded and while draining."""
        operated.check_ready()
        return Health(state=operated.state)

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Counts and times, for Prometheus."""
        return Response(await operated.metrics_text(), media_type=CONTENT_TYPE_PLAIN_1_0_0)

    return router
