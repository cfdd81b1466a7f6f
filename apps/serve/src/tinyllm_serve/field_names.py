"""Errors of one layer, by the names that the layer above has for its fields."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fastapi.exceptions import RequestValidationError
from tinyllm_engine import RequestError
from tinyllm_qwen import TemplateError

from tinyllm_serve.api_error import ApiError, as_api_error

CHAT = {"prompt": "messages"}
"""What the engine calls a conversation."""

EMBEDDINGS = {"prompt": "input"}
"""What the engine calls a text."""

RESPONSES = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text.format",
}
"""Fields of chat completions, as /v1/responses has them."""


@contextmanager
def named(names: Mapping[str, str]) -> Iterator[None]:
    """Have errors of a request tell of other fields than those that they were raised for.

    Args:
        names: what the fields are called here.

    Raises:
        ApiError: for each error of a request.
    """
    try:
        yield
    except (ApiError, RequestError, TemplateError, RequestValidationError) as error:
        told = as_api_error(error)
        was = told.param or ""
        name = names.get(was, was)
        message = told.message
        if message.startswith(f"{was}: "):
            message = f"{name}{message.removeprefix(was)}"
        raise ApiError(
            told.status, message, param=name or None, code=told.code, headers=told.headers
        ) from error
