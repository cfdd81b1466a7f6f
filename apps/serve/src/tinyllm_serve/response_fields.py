"""Errors of a conversation, by the names that /v1/responses has for its fields."""

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi.exceptions import RequestValidationError
from tinyllm_engine import RequestError
from tinyllm_qwen import TemplateError

from tinyllm_serve.api_error import ApiError, as_api_error

_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "response_format": "text.format",
}


@contextmanager
def response_fields() -> Iterator[None]:
    """Have what is wrong with a conversation told as what is wrong with the request it came from.

    Raises:
        ApiError: 400 for each error that names a field of chat completions.
    """
    try:
        yield
    except (RequestError, TemplateError, RequestValidationError) as error:
        told = as_api_error(error)
        was = told.param or ""
        name = _NAMES.get(was, was)
        message = told.message
        if message.startswith(f"{was}: "):
            message = f"{name}{message.removeprefix(was)}"
        raise ApiError(told.status, message, param=name or None, code=told.code) from error
