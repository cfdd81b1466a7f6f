"""What an answer must conform to."""

from tinyllm_engine import Grammar

from tinyllm_serve.api_error import ApiError
from tinyllm_serve.schemas.response_format import (
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
)


def response_grammar(wanted: ResponseFormat | None, after: str | None = None) -> Grammar | None:
    """The grammar of a format; None where all text will do.

    Args:
        wanted: the format.
        after: text that comes before what must conform.

    Raises:
        ApiError: 400 if there is no such grammar.
    """
    try:
        match wanted:
            case JsonObjectFormat():
                return Grammar.json_object(after)
            case JsonSchemaFormat():
                return Grammar.json_schema(wanted.json_schema.json_schema, after)
    except ValueError as error:
        raise ApiError(400, f"response_format: {error}", param="response_format") from error
    return None
