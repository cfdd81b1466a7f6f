"""The base of everything that clients send."""

from pydantic import BaseModel, ConfigDict, model_validator


class Strict(BaseModel):
    """An object that is taken as it is: no unknown fields, no text for numbers, no NaN.

    Null says nothing, so that a field of any name may be null. Clients that turn an answer into a
    dictionary, to send it back with the next question, have all fields of OpenAI's in it.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        json_schema_extra={"additionalProperties": {"type": "null"}},
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: object) -> object:
        if not isinstance(body, dict):
            return body
        names = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in body.items() if value is not None or key in names}
