"""Errors as OpenAI's clients know them."""

import math
import re
from collections.abc import Mapping, Sequence
from functools import singledispatch

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from tinyllm_engine import EngineClosedError, EngineFullError, PromptTooLongError, RequestError
from tinyllm_qwen import TemplateError

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_NO_OBJECT = ("missing", "model_attributes_type", "dict_type")
RETRY_AFTER = 5  # seconds; what a restart takes


class ApiError(Exception):
    """An error that a client gets to see.

    Attributes:
        status: of the HTTP response.
        message: what is wrong, and what to do.
        param: the field that is at fault, if it is one.
        code: a word that programs can test.
        headers: of the HTTP response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Say what is wrong."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, object]:
        """The error as JSON's values."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, kind),
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def response(self) -> JSONResponse:
        """The error as a response."""
        return JSONResponse(self.body, self.status, self.headers)


@singledispatch
def as_api_error(_error: Exception) -> ApiError:
    """The form of any error in which a client may see it; what is not expected says nothing."""
    return ApiError(500, "the server failed: its log says why", code="internal_error")


def closing(reason: str) -> ApiError:
    """The error of a server that does not take requests now."""
    return ApiError(503, reason, code="unavailable", headers={"Retry-After": str(RETRY_AFTER)})


@as_api_error.register
def _(error: ApiError) -> ApiError:
    return error


@as_api_error.register
def _(error: HTTPException) -> ApiError:
    return ApiError(error.status_code, error.detail, headers=error.headers)


@as_api_error.register
def _(error: EngineFullError) -> ApiError:
    after = {"Retry-After": str(math.ceil(error.retry_after))}
    return ApiError(429, str(error), code="engine_full", headers=after)


@as_api_error.register
def _(error: EngineClosedError) -> ApiError:
    return closing(str(error))


@as_api_error.register
def _(error: TemplateError) -> ApiError:
    return ApiError(400, str(error), param="messages")


@as_api_error.register
def _(error: RequestError) -> ApiError:
    return ApiError(400, str(error), param=_field(str(error)))


@as_api_error.register
def _(error: PromptTooLongError) -> ApiError:
    """OpenAI's code for it: clients look for it, to shorten the conversation."""
    return ApiError(400, str(error), param=_field(str(error)), code="context_length_exceeded")


@as_api_error.register
def _(error: RequestValidationError) -> ApiError:
    """The thing that is wrong with a body, with the path to it."""
    # The deepest: of a union every branch complains, and the one that got furthest knows most.
    # Of several at one depth that of the type: of another type the other fields are others too.
    first = max(error.errors(), key=lambda each: (len(each["loc"]), each["loc"][-1:] == ("type",)))
    if first["loc"] == ("body",) and first["type"] in _NO_OBJECT:
        return ApiError(
            400,
            "the body is no JSON object: send one, with 'Content-Type: application/json'",
            code="json_invalid",
        )
    if first["type"] == "json_invalid":
        reason = first["ctx"]["error"]
        return ApiError(400, f"the body is not JSON: {reason}", code="json_invalid")
    missing, unknown = first["type"] == "missing", first["type"] == "extra_forbidden"
    param = _path(first["loc"][1:], error.body, missing=missing)
    reason = first["msg"].removeprefix("Value error, ")
    if not param and (param := _field(reason)):
        reason = reason.removeprefix(f"{param}: ")
    if unknown:
        reason = "this server does not know this field"
    code = "unknown_parameter" if unknown else "missing_parameter" if missing else "invalid_value"
    return ApiError(400, f"{param}: {reason}" if param else reason, param=param, code=code)


def _field(message: str) -> str | None:
    """The field that a message begins with."""
    found = re.match(r"([a-z_]+(?:\.[a-z_]+)*): ", message)
    return found and found[1]


def _path(location: Sequence[str | int], body: object, *, missing: bool) -> str | None:
    """Where in the body that is; pydantic's location also names the branches of unions."""
    names: list[str] = []
    for part in location:
        match body, part:
            case dict(), _ if part in body:
                body = body[part]
            case list(), int():
                body = body[part]
            case _ if not (missing and part == location[-1]):
                continue
        names.append(str(part))
    return ".".join(names) or None
