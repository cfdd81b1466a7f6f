"""A request to /v1/responses, as the conversation that it is."""

from collections.abc import Sequence

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from tinyllm_serve.schemas.chat_request import ChatRequest
from tinyllm_serve.schemas.messages import (
    AssistantMessage,
    CalledFunction,
    Message,
    PastToolCall,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from tinyllm_serve.schemas.response_format import JsonSchemaFormat, ResponseFormat
from tinyllm_serve.schemas.response_items import (
    CallItem,
    CallOutputItem,
    InputItem,
    MessageItem,
    ReasoningItem,
)
from tinyllm_serve.schemas.response_request import FlatSchemaFormat, ResponseRequest
from tinyllm_serve.schemas.tools import (
    Function,
    FunctionName,
    NamedFunction,
    NamedTool,
    Tool,
    ToolMode,
)


def as_chat(asked: ResponseRequest) -> ChatRequest:
    """The same request, as chat completions have it.

    Raises:
        RequestValidationError: if fields do not go together.
    """
    messages: list[Message] = []
    if asked.instructions is not None:
        messages.append(SystemMessage(role="system", content=asked.instructions))
    if isinstance(asked.input, str):
        messages.append(UserMessage(role="user", content=asked.input))
    else:
        messages += _messages(asked.input)
    tools = [
        Tool(type="function", function=Function(**tool.model_dump(exclude={"type"})))
        for tool in asked.tools or []
    ]
    try:
        return ChatRequest(
            model=asked.model,
            messages=messages,
            max_completion_tokens=asked.max_output_tokens,
            temperature=asked.temperature,
            top_p=asked.top_p,
            tools=tools or None,
            tool_choice=_choice(asked),
            parallel_tool_calls=asked.parallel_tool_calls,
            response_format=_format(asked),
            structured_outputs=asked.structured_outputs,
            priority=asked.priority,
            reasoning_effort=None if asked.reasoning is None else asked.reasoning.effort,
        )
    except ValidationError as error:  # of fields that do not go together
        raise RequestValidationError(error.errors()) from error


def _messages(items: Sequence[InputItem]) -> list[Message]:
    """Items as messages: thinking, text and calls of one answer are one message."""
    messages: list[Message] = []
    for item in items:
        match item:
            case CallOutputItem():
                result = ToolMessage(role="tool", content=item.text, tool_call_id=item.call_id)
                messages.append(result)
            case MessageItem(role="user"):
                messages.append(UserMessage(role="user", content=item.text))
            case MessageItem(role="system" | "developer"):
                messages.append(SystemMessage(role="system", content=item.text))
            case MessageItem() | ReasoningItem() | CallItem():
                last = messages[-1] if messages else None
                if isinstance(last, AssistantMessage):
                    messages[-1] = _extended(last, item)
                else:
                    messages.append(_extended(AssistantMessage(role="assistant"), item))
    return messages


def _extended(
    message: AssistantMessage, item: MessageItem | ReasoningItem | CallItem
) -> AssistantMessage:
    """An answer, and one thing more that belongs to it."""
    match item:
        case MessageItem():
            return message.model_copy(update={"content": f"{message.content or ''}{item.text}"})
        case ReasoningItem():
            thought = f"{message.reasoning_content or ''}{item.text}"
            return message.model_copy(update={"reasoning_content": thought})
        case CallItem():
            function = CalledFunction(name=item.name, arguments=item.arguments)
            calls = [*(message.tool_calls or []), PastToolCall(id=item.call_id, function=function)]
            return message.model_copy(update={"tool_calls": calls})


def _choice(asked: ResponseRequest) -> ToolMode | NamedTool | None:
    match asked.tool_choice:
        case NamedFunction(name=name):
            return NamedTool(type="function", function=FunctionName(name=name))
        case "auto":
            return None  # which is the same, and may be said where there are no tools
        case choice:
            return choice


def _format(asked: ResponseRequest) -> ResponseFormat | None:
    wanted = asked.text.format if asked.text else None
    if not isinstance(wanted, FlatSchemaFormat):
        return wanted
    named = wanted.model_dump(by_alias=True, exclude={"type"})
    return JsonSchemaFormat.model_validate({"type": "json_schema", "json_schema": named})
