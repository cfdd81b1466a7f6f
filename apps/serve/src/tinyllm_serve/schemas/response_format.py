"""What form the answer must have."""

from typing import Annotated, Literal

from pydantic import Field

from tinyllm_serve.schemas.strict import Strict


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
    json_schema: dict[str, object] = Field(alias="schema")
    strict: bool | None = Field(
        default=None, description="The answer is held to the schema in any case."
    )


class JsonSchemaFormat(Strict):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]
