"""Functions that the model may call, and the choice among them."""

from typing import Literal

from pydantic import Field

from tinyllm_serve.protocol.base import JsonSchema, Strict


class Function(Strict):
    """The description of a function."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: JsonSchema | None = Field(default=None, description="A JSON schema.")
    strict: bool | None = Field(
        default=None,
        description="true: the arguments of every call conform to the schema. "
        "Calls that tool_choice demands conform in any case.",
    )


class Tool(Strict):
    """A tool. Functions are the only kind."""

    type: Literal["function"]
    function: Function

    @property
    def template_form(self) -> dict[str, object]:
        """The tool for chat templates, without `strict`, which the server handles."""
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})


class FunctionName(Strict):
    """The name of a function."""

    name: str = Field(min_length=1, max_length=256)


class NamedTool(Strict):
    """The function that must be called, in the form of chat completions."""

    type: Literal["function"]
    function: FunctionName

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.name


class NamedFunction(FunctionName):
    """The function that must be called, in the flat form of /v1/responses."""

    type: Literal["function"]


ToolMode = Literal["auto", "none", "required"]
