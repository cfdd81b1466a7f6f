"""Functions that the model may call."""

from typing import Literal

from pydantic import Field

from tinyllm_serve.schemas.strict import Strict


class Function(Strict):
    """A function, described to the model."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, object] | None = Field(default=None, description="A JSON schema.")
    strict: Literal[False] | None = Field(
        default=None, description="The arguments are not held to the schema; true is refused."
    )


class Tool(Strict):
    """A function in the envelope that says that it is one."""

    type: Literal["function"]
    function: Function


ToolChoice = Literal["auto", "none"]
