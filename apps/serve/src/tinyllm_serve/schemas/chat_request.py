"""The body of POST /v1/chat/completions."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tinyllm_serve.schemas.client_fields import ClientFields
from tinyllm_serve.schemas.messages import Message
from tinyllm_serve.schemas.sampling import SamplingFields
from tinyllm_serve.schemas.template_variables import TemplateVariables
from tinyllm_serve.schemas.tools import NamedTool, Tool, ToolMode, check_tool_choice

MAX_TOP_LOGPROBS = 20

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(ClientFields, SamplingFields):
    """A conversation that the model is to go on with."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: int | None = Field(
        default=None, ge=1, description="The older name of the next field."
    )
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Annotated[list[Tool], Field(min_length=1)] | None = None
    tool_choice: ToolMode | NamedTool | None = Field(
        default=None,
        description="required, or a function: the answer is calls, with arguments by the schema.",
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="false ends the answer after its first call."
    )
    reasoning_effort: Effort | None = Field(
        default=None, description="none: answer at once; all others: think first, if the model can."
    )
    verbosity: Literal["medium"] | None = Field(
        default=None, description="As the model has it; others are refused."
    )
    modalities: list[Literal["text"]] | None = None
    chat_template_kwargs: TemplateVariables = TemplateVariables()

    @model_validator(mode="after")
    def _together(self) -> "ChatRequest":
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: expected logprobs: true beside it")
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise ValueError("max_tokens and max_completion_tokens differ: give one of them")
        check_tool_choice(self.tool_choice, [tool.function.name for tool in self.tools or []])
        if self.must_call and (self.has_form or self.ignore_eos):
            raise ValueError("tool_choice: expected no form beside it and no ignore_eos")
        if self.has_strict_tools and self.ignore_eos:
            raise ValueError("ignore_eos: expected false beside tools that are strict")
        return self

    @property
    def token_limit(self) -> int | None:
        """How many tokens at most, by either name."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def offered_tools(self) -> list[Tool]:
        """The tools that the model may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def must_call(self) -> bool:
        """Whether the answer is to be calls alone."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    @property
    def callable_tools(self) -> list[Tool]:
        """Those of the offered tools that the answer may call."""
        chosen = self.tool_choice
        if not isinstance(chosen, NamedTool):
            return self.offered_tools
        return [tool for tool in self.offered_tools if tool.function.name == chosen.name]

    @property
    def has_strict_tools(self) -> bool:
        """Whether calls of any of them are to be as the function's schema has them."""
        return any(tool.function.strict for tool in self.callable_tools)

    @property
    def template_variables(self) -> TemplateVariables:
        """Variables of the chat template; what is said outright wins over the effort."""
        effort, said = self.reasoning_effort, self.chat_template_kwargs
        if effort is None or said.enable_thinking is not None:
            return said
        return said.model_copy(update={"enable_thinking": effort != "none"})
