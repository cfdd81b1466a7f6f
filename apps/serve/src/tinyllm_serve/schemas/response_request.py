"""The body of POST /v1/responses."""

from typing import Annotated, Literal

from pydantic import Field

from tinyllm_serve.schemas.chat_request import Effort
from tinyllm_serve.schemas.client_fields import ClientFields
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
    verbosity: Literal["medium"] | None = Field(
        default=None, description="As the model has it; others are refused."
    )


class ReasoningOptions(Strict):
    """How much to think."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = Field(
        default=None, description="One where there is one; there is none, but the thinking itself."
    )


class NoObfuscation(Strict):
    """That a stream is as it is."""

    include_obfuscation: Literal[False] | None = None


class ResponseRequest(ClientFields):
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
    stream_options: NoObfuscation | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = Field(
        default=None,
        description="What a client needs to send the thinking back: it is in the item as it is.",
    )
