"""Functions that the model may call, and the choice among them."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from tinyllm_serve.protocol.base import MAX_NAME, CacheControl, JsonSchema, Strict


class Function(Strict):
    """The description of a function."""

    name: str = Field(min_length=1, max_length=MAX_NAME)
    description: str | None = None
    parameters: JsonSchema | None = Field(default=None, description="A JSON schema.")
    strict: bool | None = Field(
        default=None,
        description="true: the arguments of every call conform to the schema. "
        "Calls that tool_choice demands conform in any case.",
    )


class Tool(Strict):
    """A tool. Functions are the only kind."""

    unsupported: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("name", "description", "parameters", "strict"),
            "unknown here: write it in function, beside type",
        ),
        "input_schema": "unknown here: write it as function.parameters",
    }

    type: Literal["function"]
    function: Function
    cache_control: CacheControl | None = Field(default=None, exclude=True)

    @property
    def template_form(self) -> dict[str, object]:
        """The tool for chat templates, without `strict`, which the server handles."""
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})


class FunctionName(Strict):
    """The name of a function."""

    name: str = Field(min_length=1, max_length=MAX_NAME)


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

HostedKind = Literal[
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "custom",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "namespace",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
]
"""The types of tools that OpenAI's servers run, or that need more than the calls of functions."""


class HostedTool(BaseModel):
    """A tool that this server cannot offer to a model. Only its type is read."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    type: HostedKind = Field(
        description="Left out, unless tool_choice is required: the model never sees this tool."
    )
