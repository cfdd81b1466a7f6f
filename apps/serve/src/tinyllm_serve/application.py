"""The ASGI application: all endpoints, behind the middleware."""

from fastapi import FastAPI, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp
from tinyllm_engine import EngineClosedError, EngineFullError, GrammarLimitError, RequestError
from tinyllm_qwen import TemplateError

from tinyllm_serve.http.api_key import BEARER
from tinyllm_serve.http.errors import ApiError, ErrorBody, as_api_error
from tinyllm_serve.http.middleware import add_middleware
from tinyllm_serve.routes import (
    chat,
    completions,
    embeddings,
    health,
    models,
    page,
    responses,
    tokenize,
)
from tinyllm_serve.service import Service

_ERRORS = (
    ApiError,
    RequestValidationError,
    HTTPException,
    EngineFullError,
    EngineClosedError,
    RequestError,
    TemplateError,
    GrammarLimitError,
    Exception,
)

_PROTECTED = (chat, completions, embeddings, responses, models, tokenize)


def make_application(service: Service) -> ASGIApp:
    """Make the endpoints of a service, behind the middleware."""
    endpoints = make_endpoints(service)
    return add_middleware(endpoints, service.settings, service.metrics, service.pacer)


def make_endpoints(service: Service) -> ASGIApp:
    """Make the endpoints of a service."""
    app: FastAPI = FastAPIOffline(
        redoc_url=None,
        title="tinyllm",
        description="Qwen models behind OpenAI's API.",
        responses={"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}},
    )
    # The dependency only describes the key at /docs. `ApiKey` checks the key.
    key = [Security(BEARER)] if service.settings.has_keys else []
    for routes in _PROTECTED:
        app.include_router(routes.router, dependencies=key)
    app.include_router(health.metrics_router, dependencies=key)
    app.include_router(health.router)
    app.include_router(page.router)
    app.state.served = service
    add_error_handlers(app)
    return app


def add_error_handlers(app: FastAPI) -> None:
    """Answer all errors in OpenAI's shape."""
    for kind in _ERRORS:
        app.add_exception_handler(kind, _error_response)


async def _error_response(_request: Request, error: Exception) -> JSONResponse:
    return as_api_error(error).response
