"""The service behind the endpoints, as a parameter that FastAPI fills in."""

from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from tinyllm_serve.served_model import ServedModel
from tinyllm_serve.service import Service


async def _served(request: Request) -> object:
    return request.app.state.served


AnyServedModel = Annotated[ServedModel, Depends(_served)]
"""A model in this process, or replicas of it."""

ModelService = Annotated[Service, Depends(_served)]
"""A model in this process."""
