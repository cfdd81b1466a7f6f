"""The ASGI application: all endpoints, behind the middleware."""

from fastapi import FastAPI, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp
from tinyllm_engine import EngineClosedError, EngineFullError, RequestError
from tinyllm_qwen import TemplateError

from tinyllm_serve.http.errors import ApiError, ErrorBody, as_api_error
from tinyllm_serve.http.middleware import BEARER, add_middleware
from tinyllm_serve.routes.chat import chat_router
from tinyllm_serve.routes.completions import completions_router
from tinyllm_serve.routes.embeddings import embeddings_router
from tinyllm_serve.routes.health import health_router, metrics_router
from tinyllm_serve.routes.models import models_router
from tinyllm_serve.routes.page import page_router
from tinyllm_serve.routes.responses import responses_router
from tinyllm_serve.routes.tokenize import tokenize_router
from tinyllm_serve.service import Service

_ERRORS = (
    ApiError,
    RequestValidationError,
    HTTPException,
    EngineFullError,
    EngineClosedError,
    RequestError,
    TemplateError,
    Exception,
)

_PROTECTED = (
    chat_router,
    completions_router,
    embeddings_router,
    responses_router,
    models_router,
    tokenize_router,
    metrics_router,
)


def make_application(service: Service) -> ASGIApp:
    """Make the endpoints of a service, behind the middleware."""
    return add_middleware(make_endpoints(service), service.settings, service.metrics)


def make_endpoints(service: Service) -> ASGIApp:
    """Make the endpoints of a service."""
    app: FastAPI = FastAPIOffline(
        redoc_url=None,
        title="tinyllm",
        description="Qwen models behind OpenAI's API.",
        responses={"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}},
    )
    # The dependency describes the key at /docs. `ApiKey` checks it.
    key = [Security(BEARER)] if service.settings.api_key else []
    for router in _PROTECTED:
        app.include_router(router(service), dependencies=key)
    app.include_router(health_router(service))
    app.include_router(page_router())
    add_error_handlers(app)
    return app


def add_error_handlers(app: FastAPI) -> None:
    """Answer all errors in OpenAI's shape."""
    for kind in _ERRORS:
        app.add_exception_handler(kind, _error_response)


async def _error_response(_request: Request, error: Exception) -> JSONResponse:
    return as_api_error(error).response
