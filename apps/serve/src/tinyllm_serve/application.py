"""The application: all endpoints, and what stands before them."""

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp
from tinyllm_engine import EngineClosedError, EngineFullError, RequestError
from tinyllm_qwen import TemplateError

from tinyllm_serve.api_error import ApiError, as_api_error
from tinyllm_serve.api_key import ApiKey
from tinyllm_serve.body_limit import BodyLimit
from tinyllm_serve.host_check import HostCheck
from tinyllm_serve.metrics import Metrics
from tinyllm_serve.request_log import RequestLog
from tinyllm_serve.routes.chat import chat_router
from tinyllm_serve.routes.completions import completions_router
from tinyllm_serve.routes.embeddings import embeddings_router
from tinyllm_serve.routes.health import health_router
from tinyllm_serve.routes.models import models_router
from tinyllm_serve.routes.page import page_router
from tinyllm_serve.routes.responses import responses_router
from tinyllm_serve.routes.tokens import tokens_router
from tinyllm_serve.schemas.error import ErrorBody
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings

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

_ROUTERS = (
    chat_router,
    completions_router,
    embeddings_router,
    responses_router,
    models_router,
    tokens_router,
    health_router,
)


def make_application(service: Service) -> ASGIApp:
    """The endpoints of a service, and what stands before them."""
    return guard(make_endpoints(service), service.settings, service.metrics)


def make_endpoints(service: Service) -> ASGIApp:
    """Put the endpoints of a service together."""
    app: FastAPI = FastAPIOffline(
        redoc_url=None,
        title="tinyllm",
        description="Qwen models behind OpenAI's interface.",
        responses={"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}},
    )
    for router in _ROUTERS:
        app.include_router(router(service))
    app.include_router(page_router())
    tell_errors(app)
    return app


def tell_errors(app: FastAPI) -> None:
    """Have all errors told in OpenAI's shape."""
    for kind in _ERRORS:
        app.add_exception_handler(kind, _tell)


def guard(app: ASGIApp, settings: Settings, metrics: Metrics) -> ASGIApp:
    """Put before an application what decides whose requests come to it, and what counts them."""
    guarded: ASGIApp = ApiKey(BodyLimit(app, settings.max_body), settings.api_keys)
    if settings.cors_origins:
        # Around the keys: a browser asks whether it may ask without sending one.
        guarded = CORSMiddleware(
            guarded,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    if settings.host_names is not None:
        guarded = HostCheck(guarded, settings.host_names)
    return RequestLog(guarded, metrics)


async def _tell(_request: Request, error: Exception) -> JSONResponse:
    """Any error in OpenAI's shape."""
    return as_api_error(error).response
