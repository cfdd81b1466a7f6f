"""What an answer must be, where that is no JSON."""

from typing import Annotated

from pydantic import Field, model_validator

from tinyllm_serve.schemas.strict import Strict

MAX_TEXTS = 1024

Text = Annotated[str, Field(min_length=1)]


class StructuredOutputs(Strict):
    """One of these; vLLM's field of that name, for JSON there is `response_format`."""

    regex: Text | None = Field(default=None, description="Matches the answer as a whole.")
    choice: Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)] | None = Field(
        default=None, description="The answer is one of these texts."
    )
    grammar: Text | None = Field(
        default=None, description="Rules of the answer, in llguidance's dialect of Lark."
    )

    @model_validator(mode="after")
    def _one(self) -> "StructuredOutputs":
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected one of regex, choice and grammar, got {len(given)}")
        return self
