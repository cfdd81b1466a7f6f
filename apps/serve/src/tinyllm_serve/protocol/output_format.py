"""Structured output: the formats that a request can demand."""

import json
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from tinyllm_serve.http.json_structure import JsonBounds
from tinyllm_serve.protocol.base import MAX_NAME, MAX_SCHEMA, JsonSchema, ListOf, Strict

MAX_TEXTS = 1024
"""The most texts of `choice`."""

MAX_TEXT_CHARACTERS = 1 << 16
"""The most characters of all texts of `choice` together. They compile in 20 ms."""

NonEmpty = Annotated[str, Field(min_length=1)]


class TextFormat(Strict):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """A JSON object."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "schema": "unknown here: use the type json_schema, which has a schema"
    }

    type: Literal["json_object"]


class NamedSchema(Strict):
    """A JSON schema with a name."""

    name: str = Field(min_length=1, max_length=MAX_NAME)
    description: str | None = None
    json_schema: JsonSchema = Field(alias="schema")
    strict: bool | None = Field(
        default=None, description="The answer conforms to the schema in either case."
    )


class JsonSchemaFormat(Strict):
    """JSON that conforms to a schema."""

    unsupported: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("name", "description", "schema", "strict"),
        "unknown here: write it in json_schema, beside type",
    )

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


_SCHEMA_BOUNDS = JsonBounds(values=1 << 17)


def _parsed(schema: object) -> object:
    """Return a JSON schema that may be given as text. The bounds of the body miss its structure."""
    if not isinstance(schema, str):
        return schema
    if len(schema) > MAX_SCHEMA:
        raise ValueError(f"expected at most {MAX_SCHEMA:,} characters: simplify it")
    _SCHEMA_BOUNDS.check(schema.encode(errors="replace"))
    try:
        return json.loads(schema)
    except ValueError:
        raise ValueError("expected a JSON schema, or its JSON as text, got another text") from None


class StructuredOutputs(Strict):
    """Formats as in vLLM; exactly one field is given."""

    unsupported: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            *("disable_additional_properties", "disable_any_whitespace", "disable_fallback"),
            *("structural_tag", "whitespace_pattern"),
        ),
        "this server has no such setting of structured_outputs: use response_format",
    )

    json_schema: Annotated[JsonSchema, BeforeValidator(_parsed)] | None = Field(
        default=None,
        alias="json",
        description="As response_format with json_schema; may be JSON text, as in vLLM.",
    )
    json_object: bool | None = Field(
        default=None, description="true: as response_format with json_object."
    )
    regex: NonEmpty | None = Field(default=None, description="Matches the whole answer.")
    choice: Annotated[ListOf[NonEmpty], Field(min_length=1, max_length=MAX_TEXTS)] | None = Field(
        default=None, description="The answer is one of these texts."
    )
    grammar: NonEmpty | None = Field(
        default=None, description="Grammar of the answer, in llguidance's dialect of Lark."
    )

    @model_validator(mode="after")
    def _one(self) -> "StructuredOutputs":
        values = vars(self).values()
        given = sum(value is not None and value is not False for value in values)
        if given != 1:
            raise ValueError(
                "expected exactly one of json, json_object, regex, choice and grammar, got "
                f"{given} of them"
            )
        size = sum(map(len, self.choice or []))
        if size > MAX_TEXT_CHARACTERS:
            raise ValueError(
                f"choice: expected at most {MAX_TEXT_CHARACTERS:,} characters together, "
                f"got {size:,}: use shorter texts, or number them"
            )
        return self
