"""Structured output: the formats that a request can demand."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tinyllm_serve.protocol.base import JsonSchema, ListOf, Strict

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

    type: Literal["json_object"]


class NamedSchema(Strict):
    """A JSON schema with a name."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    json_schema: JsonSchema = Field(alias="schema")
    strict: bool | None = Field(
        default=None, description="The answer conforms to the schema in either case."
    )


class JsonSchemaFormat(Strict):
    """JSON that conforms to a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class StructuredOutputs(Strict):
    """Formats other than JSON, as in vLLM; exactly one field is given."""

    regex: NonEmpty | None = Field(default=None, description="Matches the whole answer.")
    choice: Annotated[ListOf[NonEmpty], Field(min_length=1, max_length=MAX_TEXTS)] | None = Field(
        default=None, description="The answer is one of these texts."
    )
    grammar: NonEmpty | None = Field(
        default=None, description="Grammar of the answer, in llguidance's dialect of Lark."
    )

    @model_validator(mode="after")
    def _one(self) -> "StructuredOutputs":
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected one of regex, choice and grammar, got {len(given)}")
        size = sum(map(len, self.choice or []))
        if size > MAX_TEXT_CHARACTERS:
            raise ValueError(
                f"choice: expected at most {MAX_TEXT_CHARACTERS:,} characters together, "
                f"got {size:,}: use shorter texts, or number them"
            )
        return self
