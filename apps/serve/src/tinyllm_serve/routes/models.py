"""GET /v1/models."""

from typing import Literal

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel

from tinyllm_serve.routes.dependencies import ModelService
from tinyllm_serve.service import Service


class ModelBody(BaseModel):
    """A served model. `root` is the model as the operator has named it, as in vLLM."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tinyllm"
    root: str
    max_model_len: int


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelBody]


router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def models(service: ModelService) -> ModelList:
    """List the served model, under each of its names."""
    return ModelList(data=[_body(service, name) for name in service.settings.model_names])


@router.get("/v1/models/{name:path}")
async def model(name: str, service: ModelService) -> ModelBody:
    """Describe the model of a name."""
    if not name:  # the path /v1/models/
        raise HTTPException(404)
    service.check_model(name)
    return _body(service, name if name in service.settings.model_names else service.name)


def _body(service: Service, name: str) -> ModelBody:
    service.check_ready()  # the context is known once the model is loaded
    return ModelBody(
        id=name,
        created=service.created,
        root=service.root,
        max_model_len=service.max_model_len,
    )
