"""Errors, and the shapes that they and streams have in each API."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.types import Scope
from tinyllm_engine import (
    EngineClosedError,
    EngineFullError,
    GrammarLimitError,
    PromptTooLongError,
    RequestError,
)
from tinyllm_qwen import TemplateError

from tinyllm_serve.http.json_text import JsonObject, JsonText

RETRY_AFTER_UNAVAILABLE = 5
"""Seconds after which a client may retry: the time in which a server or a replica restarts."""

TOO_LONG = "context_length_exceeded"
"""OpenAI's code for prompts that are too long. Clients then shorten the conversation."""

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    **_TYPES,
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
_TOO_LONG = re.compile(r"(\d+)\D*, got (?:at least )?(\d+)")
_UNSUPPORTED = "unsupported_parameter"
"""The kind of errors of `protocol.base.Strict.unsupported`."""

_CODES = {
    "missing": "missing_parameter",
    "extra_forbidden": "unknown_parameter",
    _UNSUPPORTED: "unsupported_parameter",
}
_NO_OBJECT = ("missing", "model_type", "model_attributes_type", "dict_type")
"""Kinds of errors of a body that is no object."""

_NONE = object()

_OTHER_FORM = ("missing", "extra_forbidden", "literal_error")
"""Kinds of errors that a branch of a union reports for an object of another form."""


class ErrorDetail(BaseModel):
    """An error: a message for people, its kind, the field at fault, and a code for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every response with an error."""

    error: ErrorDetail


class AnthropicErrorDetail(BaseModel):
    """An error: its kind, and a message for people."""

    type: str
    message: str


class AnthropicErrorBody(BaseModel):
    """The body of an error of Anthropic's API."""

    type: Literal["error"] = "error"
    error: AnthropicErrorDetail
    request_id: str | None


@dataclass(eq=False)
class ApiError(Exception):
    """An error for the client.

    Attributes:
        message: the problem, and its remedy.
        param: the request's field at fault, or None.
        code: a word that programs can test, or None.
    """

    status: int
    message: str
    param: str | None = field(default=None, kw_only=True)
    code: str | None = field(default=None, kw_only=True)
    headers: Mapping[str, str] | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        """Return the message."""
        return self.message

    @property
    def detail(self) -> ErrorDetail:
        """The fields of the error."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _TYPES.get(self.status, kind)
        return ErrorDetail(message=self.message, type=kind, param=self.param, code=self.code)

    def response(self, scope: Scope) -> JSONResponse:
        """Return the response, in the shape of the API that a request's path belongs to."""
        body = api_of(scope).error_body(self, scope)
        return JsonText(body, self.status, self.headers)


@dataclass(frozen=True)
class Api:
    """The shapes of an API's errors and streams.

    Attributes:
        error_body: returns the body of an error.
        has_event_names: True if each event of a stream has its type as a name. Other streams end
            with `[DONE]`.
    """

    error_body: Callable[[ApiError, Scope], JsonObject]
    has_event_names: bool = False


def _openai_body(error: ApiError, _scope: Scope) -> JsonObject:
    return ErrorBody(error=error.detail).model_dump()


def _anthropic_body(error: ApiError, scope: Scope) -> JsonObject:
    kind = "api_error" if error.status >= 500 else "invalid_request_error"
    message = error.message
    if error.code == TOO_LONG and (counts := _TOO_LONG.search(message)):
        # Clients look for this text, and then shorten the conversation.
        most, got = counts.groups()
        message = f"prompt is too long: {got} tokens > {most} maximum: shorten it"
    detail = AnthropicErrorDetail(type=_ANTHROPIC_TYPES.get(error.status, kind), message=message)
    identity = scope.get("state", {}).get("request_id")
    return AnthropicErrorBody(error=detail, request_id=identity).model_dump()


CHAT = Api(_openai_body)
RESPONSES = Api(_openai_body, has_event_names=True)
MESSAGES = Api(_anthropic_body, has_event_names=True)

_APIS = {"/v1/responses": RESPONSES, "/v1/messages": MESSAGES}
"""The API of the paths with each prefix. All other paths belong to `CHAT`."""


def api_of(scope: Scope) -> Api:
    """Return the API that the path of a request belongs to."""
    path: str = scope["path"]
    return next((api for prefix, api in _APIS.items() if path.startswith(prefix)), CHAT)


def failed_response(error: ApiError, response: JsonObject, number: int) -> list[JsonObject]:
    """Return the last events of a stream of /v1/responses that has failed.

    OpenAI's server sends the error as an object, and OpenAI's reference shows its fields beside
    "type". Clients read either form, so that the event has both.

    Args:
        error: the error.
        response: the response so far.
        number: the number of the next event.
    """
    fields = error.detail.model_dump()
    reason = {"code": error.code or error.detail.type, "message": error.message}
    failed = {**response, "status": "failed", "error": reason}
    return [
        {**fields, "type": "error", "error": fields, "sequence_number": number},
        {"type": "response.failed", "response": failed, "sequence_number": number + 1},
    ]


def unavailable(reason: str) -> ApiError:
    """Return the error of a server that does not accept requests now."""
    return ApiError(
        503, reason, code="unavailable", headers={"Retry-After": str(RETRY_AFTER_UNAVAILABLE)}
    )


@contextmanager
def renamed_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Rename the fields in errors of a request.

    An endpoint and the layer below it can have different names for one field: a conversation is
    `messages` in chat completions and `prompt` in the engine. `names` maps the names of the layer
    below to the names of the endpoint.

    Raises:
        ApiError: for each error of a request, pydantic's of a converted request included.
    """
    try:
        yield
    except (ApiError, RequestError, TemplateError, ValidationError) as error:
        given: Exception = error
        if isinstance(error, ValidationError):
            given = RequestValidationError(error.errors(include_url=False, include_input=False))
        known = as_api_error(given)
        old = known.param or ""
        new = names.get(old, old)
        message = known.message
        if message.startswith(f"{old}: "):
            message = f"{new}{message.removeprefix(old)}"
        # Without its traceback. From Python 3.12 on, the traceback and a frame of contextlib would
        # refer to each other (python/cpython#129280), and keep the request in memory for long.
        raise replace(known, message=message, param=new or None) from error.with_traceback(None)


def as_api_error(error: Exception) -> ApiError:
    """Convert any error. For an unexpected error, the client gets no details."""
    match error:
        case ApiError():
            known = error
        case HTTPException():
            known = ApiError(error.status_code, error.detail, headers=error.headers)
        case EngineFullError():
            headers = {"Retry-After": str(math.ceil(error.retry_after))}
            known = ApiError(429, str(error), code="engine_full", headers=headers)
        case EngineClosedError():
            known = unavailable(str(error))
        case TemplateError():
            known = ApiError(400, str(error), param="messages")
        case PromptTooLongError():
            known = ApiError(400, str(error), param=_field(str(error)), code=TOO_LONG)
        case RequestError():
            known = ApiError(400, str(error), param=_field(str(error)))
        case RequestValidationError():
            known = _validation_error(error)
        case GrammarLimitError():
            known = ApiError(500, str(error), param=_field(str(error)), code="grammar_limit")
        case _:
            known = ApiError(500, "the server failed: its log says why", code="internal_error")
    return known


def _validation_error(error: RequestValidationError) -> ApiError:
    first = max(error.errors(), key=_relevance)
    kind = first["type"]
    param = _path(first["loc"][1:], error.body, kind)
    in_body = first["loc"][:1] == ("body",)
    if in_body and param is None and kind in _NO_OBJECT:
        return ApiError(
            400,
            "the body is no JSON object: send one, with 'Content-Type: application/json'",
            code="json_invalid",
        )
    reason = first["msg"].removeprefix("Value error, ")
    if kind == _UNSUPPORTED:  # an error of the object that has the field
        name = first["ctx"]["name"]
        param, reason = f"{param}.{name}" if param else name, first["ctx"]["reason"]
    elif not param and (param := _field(reason)):
        reason = reason.removeprefix(f"{param}: ")
    if kind == "extra_forbidden":
        reason = "this server does not know this field: leave it out, /docs lists the fields"
    code = _CODES.get(kind, "invalid_value")
    return ApiError(400, f"{param}: {reason}" if param else reason, param=param, code=code)


def _relevance(error: Mapping[str, Any]) -> tuple[bool, int, int, bool]:
    """Return the key that sorts errors of a body by how well they explain it.

    Every branch of a union reports errors. An error of a value is preferred, because a branch of
    another form mostly reports types and fields. Of these errors the deepest one, and in a list the
    last one, is from the branch that matched most of the body. At equal depth an error of `type`
    explains more than one of another field, because an object of another type has other fields.
    """
    kind, location = error["type"], error["loc"]
    is_value = not (kind.endswith("_type") or kind in _OTHER_FORM)
    last = location[-1] if location else None
    return is_value, len(location), last if isinstance(last, int) else -1, last == "type"


def _field(message: str) -> str | None:
    """Return the field that a message begins with, or None."""
    found = re.match(r"([a-z_]+(?:\.(?:[a-z_]+|\d+))*): ", message)
    return found and found[1]


def _path(location: Sequence[str | int], body: object, kind: str) -> str | None:
    """Return the path of a field in the body, for an error of a kind.

    pydantic's location also names the branches of unions, which are no fields of the body. A branch
    may have the name of a field: of `{"type": "function", "function": {}}`, "function" is either.
    """
    names: list[str] = []
    for index, part in enumerate(location):
        rest = location[index + 1 :]
        is_missing = kind == "missing" and not rest
        is_field = _part(body, part) is not _NONE and not _is_branch(body, part, rest, kind)
        if not is_field and not is_missing:
            continue
        body = _part(body, part)
        names.append(str(part))
    return ".".join(names) or None


def _part(value: object, part: str | int) -> object:
    """Return a field or an item of a JSON value; `_NONE` if it has none of this name or index."""
    match value, part:
        case dict(), _:
            return value.get(part, _NONE)
        case list(), int():
            return value[part]
    return _NONE


def _is_branch(body: object, part: str | int, rest: Sequence[str | int], kind: str) -> bool:
    """Return True if a name of a field in a location stands for a branch of a union.

    That is so if the rest of the location is in the body, and not in the field. No field of a
    message has the name of a role.
    """
    if not isinstance(body, dict) or part not in (body.get("type"), body.get("role")):
        return False
    if not rest:
        return kind == _UNSUPPORTED  # an error of the whole object
    if part == body.get("role"):
        return True
    if kind == "missing" and len(rest) == 1:
        return not isinstance(body[part], dict) or rest[0] in body[part]
    return _part(body[part], rest[0]) is _NONE and rest[0] in body
