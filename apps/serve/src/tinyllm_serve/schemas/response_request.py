"""The body of POST /v1/responses."""

from typing import Annotated, Literal

from pydantic import Field

from tinyllm_serve.schemas.chat_request import Effort
from tinyllm_serve.schemas.response_format import JsonObjectFormat, NamedSchema, TextFormat
from tinyllm_serve.schemas.response_items import InputItem
from tinyllm_serve.schemas.strict import Strict
from tinyllm_serve.schemas.structured_outputs import StructuredOutputs
from tinyllm_serve.schemas.tools import Function, NamedFunction, ToolMode


class FlatSchemaFormat(NamedSchema):
    """JSON that a schema describes, in this endpoint's flat form."""

    type: Literal["json_schema"]


OutputFormat = Annotated[
    TextFormat | JsonObjectFormat | FlatSchemaFormat, Field(discriminator="type")
]


class FunctionTool(Function):
    """A function, in this endpoint's flat form."""

    type: Literal["function"]


class TextOptions(Strict):
    """What form the text must have."""

    format: OutputFormat | None = None


class ReasoningOptions(Strict):
    """How much to think."""

    effort: Effort | None = None


class ResponseRequest(Strict):
    """A conversation that the model is to go on with. Nothing of it is kept on the server."""

    model: str | None = Field(default=None, description="The one that is served, or null.")
    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    tools: list[FunctionTool] | None = None
    tool_choice: ToolMode | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: int = Field(default=0, ge=-1000, le=1000, description="Lower comes sooner.")
    reasoning: ReasoningOptions | None = None
    stream: bool | None = None
    metadata: dict[str, str] | None = Field(default=None, max_length=16, description="Given back.")
    store: Literal[False] | None = Field(
        default=None, description="Nothing is stored; true is refused."
    )
    truncation: Literal["disabled"] | None = None
    user: str | None = Field(
        default=None, max_length=256, description="Written to the server's log."
    )
