"""GET /health, /ready and /metrics, of a model in this process or of its replicas."""

from typing import Literal

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0
from pydantic import BaseModel

from tinyllm_serve.routes.dependencies import AnyServedModel
from tinyllm_serve.served_model import State

router = APIRouter(tags=["operations"])
metrics_router = APIRouter(tags=["operations"])
"""The endpoint of the metrics, which needs an API key if the server has keys."""


class Health(BaseModel):
    """The state of a process that answers."""

    status: Literal["ok"] = "ok"
    state: State


@router.get("/health")
async def health(served: AnyServedModel) -> Health:
    """Answer 200 while the model works, 503 while loading and once the engine has failed."""
    served.check_loaded()
    return Health(state=served.state)


@router.get("/ready")
async def ready(served: AnyServedModel) -> Health:
    """Answer 200 while requests are accepted, 503 also while shutting down."""
    served.check_ready()
    return Health(state=served.state)


@metrics_router.get("/metrics", response_class=Response)
async def metrics(served: AnyServedModel) -> Response:
    """Return counts and times for Prometheus."""
    return Response(await served.metrics_text(), media_type=CONTENT_TYPE_PLAIN_1_0_0)
