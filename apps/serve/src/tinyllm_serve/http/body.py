"""Request bodies, parsed and validated outside of the event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from email.message import Message as MediaType
from functools import partial
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from tinyllm_serve.http.body_limit import release_body
from tinyllm_serve.http.disconnect import client_closed_request, while_connected
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.http.json_structure import JsonBounds, StructureError

P = ParamSpec("P")
T = TypeVar("T")

MAX_VALUES = 1 << 18
"""The most values of a body, in addition to one for each token of the model's context.

A conversation that fits the context has fewer values than tokens. The rest is for several prompts
as token lists, and for fields that are not a part of the prompt.
"""

TINY_BODY = 1 << 12
"""The most bytes of a body that the event loop parses itself, in 2 ms at most."""

SHORT_BODY = 1 << 16
"""The most bytes of a body that is parsed in the thread for short bodies, in 50 ms at most."""

_short_bodies = ThreadPoolExecutor(1, thread_name_prefix="short-body")
_long_bodies = ThreadPoolExecutor(1, thread_name_prefix="long-body")
"""One long body is parsed at a time, so that the memory of parsing does not add up. It takes 0.7 s,
for which short bodies do not wait."""


class BodyRoute(APIRoute):
    """A route whose body is bounded in structure, and validated in a thread unless it is tiny.

    Requests are refused before and after the body is read, unless the model is ready. The endpoint
    is cancelled if the client disconnects.

    FastAPI validates the body in the event loop, and collects all errors of it. This route gives
    FastAPI the validated object, which FastAPI accepts unchanged.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[object, object, Response]]:
        """Return FastAPI's handler behind the validation."""
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler
        info = self.body_field.field_info  # has the discriminator of a union
        annotation: Any = Annotated[info.annotation, info]
        validate = TypeAdapter(annotation).validate_python

        async def handle(request: Request) -> Response:
            served = request.app.state.served
            served.check_ready()
            if _is_json(request.headers.get("content-type", "")):
                bounds = JsonBounds(MAX_VALUES + served.context_length)
                value = await _read(request, bounds, validate)
                served.check_ready()  # again: the body may have taken a minute
                parsed = _ParsedRequest(request.scope, request.receive, value)
                return await while_connected(request, partial(handler, parsed))
            return await handler(request)

        return handle


async def read_body(request: Request) -> bytearray:
    """Read a body into one block of memory, which nothing else keeps.

    Starlette's `Request.body` keeps the bytes until the answer has ended, and joins chunks that
    together are as long. Freed, these leave gaps in the C heap, which glibc keeps.

    Raises:
        ClientDisconnect: if the client disconnects before the end of the body.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
    return body


def clear_body(body: BaseModel) -> None:
    """Remove all fields of a validated body, before a long wait in which they are not used.

    FastAPI keeps the body until the answer has ended, which may take minutes.
    """
    vars(body).clear()
    body.model_fields_set.clear()
    if body.model_extra is not None:
        body.model_extra.clear()


def discard_body(request: Request, body: BaseModel) -> None:
    """Remove all fields of a validated body, and return the memory that is counted for it."""
    clear_body(body)
    release_body(request.scope)


async def process_body(
    work: Callable[Concatenate[bytearray, P], T], body: bytearray, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return `work(body, *args, **kwargs)`, computed in a thread unless the body is tiny."""
    if len(body) <= TINY_BODY:
        return work(body, *args, **kwargs)
    executor = _short_bodies if len(body) <= SHORT_BODY else _long_bodies
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(executor, partial(work, body, *args, **kwargs))


async def _read(
    request: Request, bounds: JsonBounds, validate: Callable[[object], object]
) -> object:
    """Read, parse and validate a body.

    Raises:
        ApiError: 400 if the structure exceeds the bounds, or the body is not JSON; 499 if the
            client has disconnected.
        RequestValidationError: if `validate` raises ValidationError.
    """
    try:
        body = await read_body(request)
    except ClientDisconnect:
        raise client_closed_request() from None
    return await process_body(_parse, body, bounds, validate)


def _parse(body: bytearray, bounds: JsonBounds, validate: Callable[[object], object]) -> object:
    """Parse and validate a body; raises the errors of `_read`."""
    try:
        bounds.check(body)
        value = from_json(body, allow_inf_nan=False)
    except StructureError as error:
        raise ApiError(400, f"the body: {error}", code="body_too_complex") from None
    except ValueError as error:
        message = f"the body is not JSON: {error}"
        raise ApiError(400, message[:500], code="json_invalid") from None
    try:
        return validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        located = [{**each, "loc": ("body", *each["loc"])} for each in errors]
        raise RequestValidationError(located, body=value) from None


class _ParsedRequest(Request):
    """A request whose body is parsed and validated."""

    def __init__(self, scope: Scope, receive: Receive, value: object) -> None:
        super().__init__(scope, receive)
        self._value = value

    async def body(self) -> bytes:
        """Return a text that is not empty: FastAPI tests only that there is a body."""
        return b"{}"

    async def json(self) -> object:
        """Return the validated value."""
        return self._value


def _is_json(content_type: str) -> bool:
    """Return True for the content types that FastAPI parses as JSON."""
    media = MediaType()
    media["content-type"] = content_type
    subtype = media.get_content_subtype()
    is_json = subtype == "json" or subtype.endswith("+json")
    return media.get_content_maintype() == "application" and is_json
