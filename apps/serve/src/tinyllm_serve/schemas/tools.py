"""Functions that the model may call."""

from collections.abc import Collection
from typing import Literal

from pydantic import Field

from tinyllm_serve.schemas.strict import Strict


class Function(Strict):
    """A function, described to the model."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, object] | None = Field(default=None, description="A JSON schema.")
    strict: bool | None = Field(
        default=None,
        description="true: whenever it is called, its arguments are as the schema has them. "
        "Calls that tool_choice asks for are so in any case.",
    )


class Tool(Strict):
    """A function in the envelope that says that it is one."""

    type: Literal["function"]
    function: Function

    @property
    def template_form(self) -> dict[str, object]:
        """As chat templates expect it; whether it is strict is nothing to the model."""
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})


class FunctionName(Strict):
    """A function by its name."""

    name: str = Field(min_length=1, max_length=256)


class NamedTool(Strict):
    """The function that is to be called."""

    type: Literal["function"]
    function: FunctionName

    @property
    def name(self) -> str:
        """What it is called."""
        return self.function.name


class NamedFunction(FunctionName):
    """The same, in the flat form of /v1/responses."""

    type: Literal["function"]


ToolMode = Literal["auto", "none", "required"]


def check_tool_choice(
    choice: ToolMode | NamedTool | NamedFunction | None, functions: Collection[str]
) -> None:
    """Refuse a choice among functions that are not there.

    Raises:
        ValueError: if it is one.
    """
    if choice is None or choice == "none":
        return
    if not functions:
        raise ValueError("tool_choice: expected tools beside it")
    if not isinstance(choice, str) and choice.name not in functions:
        known = ", ".join(sorted(functions))
        raise ValueError(f"tool_choice: expected one of {known}, got {choice.name}")
