"""The ASGI application: all endpoints, behind the middleware."""

import re
from dataclasses import replace

from fastapi import FastAPI, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send
from tinyllm_engine import EngineClosedError, EngineFullError, GrammarLimitError, RequestError
from tinyllm_qwen import TemplateError

from tinyllm_serve.http.api_key import BEARER, Anonymous, ApiKey
from tinyllm_serve.http.body_limit import BodyLimit
from tinyllm_serve.http.errors import ApiError, ErrorBody, as_api_error
from tinyllm_serve.http.host_check import HostCheck
from tinyllm_serve.http.rate_limiter import RateLimiter
from tinyllm_serve.http.request_log import RequestLog, log_fields
from tinyllm_serve.metrics import Metrics
from tinyllm_serve.protocol.anthropic import CountTokensRequest, MessagesRequest
from tinyllm_serve.protocol.chat import ChatRequest
from tinyllm_serve.protocol.completions import CompletionRequest
from tinyllm_serve.protocol.responses import ResponseRequest
from tinyllm_serve.routes import (
    api_page,
    chat,
    completions,
    embeddings,
    health,
    messages,
    models,
    page,
    responses,
    tokenize,
)
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings

EXPOSED_HEADERS = ("x-request-id", "Retry-After")
"""Headers of responses that scripts of other origins may read."""

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
"""Errors that get a response. Of an `Exception` of no other kind, uvicorn logs the traceback."""

_BODIES = (
    ChatRequest,
    CompletionRequest,
    ResponseRequest,
    MessagesRequest,
    CountTokensRequest,
    embeddings.EmbeddingRequest,
    tokenize.TokenizeText,
    tokenize.TokenizeChat,
    tokenize.DetokenizeRequest,
)
_FIELDS = {name for body in _BODIES for name in (*body.model_fields, *body.unsupported)}
"""The names of all fields of request bodies. Other names can be text of a user."""

_MODEL_ROUTES = (chat, completions, embeddings, responses, messages, models, tokenize)
_PROTECTED = (*(routes.router for routes in _MODEL_ROUTES), health.metrics_router)
_OPEN = (health.router, page.router, api_page.router)
_ROUTES = [route for router in (*_PROTECTED, *_OPEN) for route in router.routes]


def make_application(service: Service) -> ASGIApp:
    """Make the endpoints of a service, behind the middleware."""
    endpoints = make_endpoints(service)
    return add_middleware(endpoints, service.settings, service.metrics, service.rate_limiter)


def make_endpoints(service: Service) -> ASGIApp:
    """Make the endpoints of a service."""
    app = FastAPI(
        openapi_url=None,  # `api_page` has the document, and a page that needs no network
        title="tinyllm",
        description="Qwen models behind OpenAI's and Anthropic's APIs.",
        responses={"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}},
        redirect_slashes=False,  # a 307 to a POST has no message, and many clients do not follow it
    )
    # The dependency only describes the key at /docs. `ApiKey` checks the key.
    key = [Security(BEARER)] if service.settings.has_keys else []
    for router in _PROTECTED:
        app.include_router(router, dependencies=key)
    for router in _OPEN:
        app.include_router(router)
    app.state.served = service
    app.state.api_document = api_page.ApiDocument(app)
    add_error_handlers(app)

    async def count_requests(scope: Scope, receive: Receive, send: Send) -> None:
        with service.request():
            await app(scope, receive, send)

    return count_requests


def make_replica_endpoints(service: Service) -> ASGIApp:
    """Make the endpoints of a replica, with a bound on the memory of the bodies that it holds.

    The front limits the length of bodies. It no longer counts a body that it has sent.
    """
    settings = service.settings
    memory = settings.max_body_memory
    return BodyLimit(make_endpoints(service), memory, memory, settings.timeout_body)


def add_middleware(
    app: ASGIApp, settings: Settings, metrics: Metrics, rate_limiter: RateLimiter
) -> ASGIApp:
    """Wrap endpoints in the middleware: log, Host, CORS, API key, body limit, in this order.

    All scopes are HTTP requests, because the server runs without lifespan events and WebSockets.
    """
    app = BodyLimit(app, settings.max_body, settings.max_body_memory, settings.timeout_body)
    if settings.has_keys:
        app = ApiKey(app, settings.clients(), rate_limiter)
    else:
        app = Anonymous(app, settings.max_priority, rate_limiter)
    if settings.allowed_origins:
        # Outside of the key check, because a browser sends its preflight requests without a key.
        app = CORSMiddleware(
            app,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST"],
            # OpenAI's JavaScript SDK sends some ten headers of its own, such as x-stainless-os. The
            # server reads none of them, and the origin decides who may send requests.
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    if settings.host_names is not None:
        app = HostCheck(app, settings.host_names)
    return RequestLog(app, metrics, _ROUTES)


def add_error_handlers(app: FastAPI) -> None:
    """Answer all errors in the shape of the API of their path."""
    for kind in _ERRORS:
        app.add_exception_handler(kind, _error_response)


async def _error_response(request: Request, error: Exception) -> JSONResponse:
    known = as_api_error(error)
    if known.status == 404 and isinstance(error, HTTPException):
        known = replace(known, message=_no_path(request))
    if known.status == 405 and known.headers is not None:
        message = f"method: expected {known.headers['Allow']}, got {request.method}"
        known = replace(known, message=message)
    log = log_fields(request)
    log["code"] = known.code
    field = (known.param or "").partition(".")[0]
    log["param"] = field if field in _FIELDS else None
    return known.response(request.scope)


def _no_path(request: Request) -> str:
    """Return the message for a path without an endpoint."""
    path = request.url.path
    bases = {
        f"/v1{path}": "append /v1 to the base URL of the client",
        path.removeprefix("/v1"): "write /v1 once in the base URL of the client",
        re.sub("/+", "/", path): "end the base URL of the client without a slash",
        path.rstrip("/"): "leave out the slash at its end",
    }
    for right, remedy in bases.items():
        scope = {**request.scope, "path": right}
        found = any(route.matches(scope)[0] != Match.NONE for route in request.app.routes)
        is_api = right.startswith("/v1/") or right == path.rstrip("/")
        if found and right not in (path, "") and is_api:
            return f"expected the path {right}, got {path}: {remedy}"
    if path.startswith("/api/"):
        return "no endpoint has a path of Ollama's API: use /v1 with a client of OpenAI's API"
    return f"no endpoint has the path {path[:200]!r}: /docs lists all of them"
