"""Conversion of a request of POST /v1/responses to one of chat completions."""

from collections.abc import Sequence

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from tinyllm_serve.protocol.chat import ChatRequest
from tinyllm_serve.protocol.messages import (
    AssistantMessage,
    CalledFunction,
    Message,
    PastToolCall,
    SystemMessage,
    ToolMessage,
    UserMessage,
    text_of,
)
from tinyllm_serve.protocol.output_format import JsonSchemaFormat, ResponseFormat
from tinyllm_serve.protocol.responses import (
    CallItem,
    CallOutputItem,
    FlatSchemaFormat,
    InputItem,
    MessageItem,
    ReasoningItem,
    ResponseRequest,
)
from tinyllm_serve.protocol.tools import (
    Function,
    FunctionName,
    NamedFunction,
    NamedTool,
    Tool,
    ToolMode,
)


def as_chat(body: ResponseRequest) -> ChatRequest:
    """Convert a request.

    Raises:
        RequestValidationError: if fields exclude each other, or an item is no valid message.
    """
    try:
        return _as_chat(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


def _as_chat(body: ResponseRequest) -> ChatRequest:
    messages: list[Message] = []
    if body.instructions is not None:
        messages.append(SystemMessage(role="system", content=body.instructions))
    if isinstance(body.input, str):
        messages.append(UserMessage(role="user", content=body.input))
    else:
        messages += _messages(body.input)
    tools = [
        Tool(type="function", function=Function(**tool.model_dump(exclude={"type"})))
        for tool in body.tools or []
    ]
    return ChatRequest(
        model=body.model,
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        tools=tools or None,
        tool_choice=_tool_choice(body),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_response_format(body),
        structured_outputs=body.structured_outputs,
        priority=body.priority,
        cache_salt=body.cache_salt,
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
    )


def _messages(items: Sequence[InputItem]) -> list[Message]:
    """Convert items. Reasoning, text and calls of one answer are one message."""
    messages: list[Message] = []
    for item in items:
        match item:
            case CallOutputItem():
                result = ToolMessage(
                    role="tool", content=text_of(item.output), tool_call_id=item.call_id
                )
                messages.append(result)
            case MessageItem(role="user"):
                messages.append(UserMessage(role="user", content=text_of(item.content)))
            case MessageItem(role="system" | "developer"):
                messages.append(SystemMessage(role="system", content=text_of(item.content)))
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
    """Return the message of an answer with one more item of the answer."""
    match item:
        case MessageItem():
            return message.model_copy(
                update={"content": f"{message.content or ''}{text_of(item.content)}"}
            )
        case ReasoningItem():
            reasoning = f"{message.reasoning_content or ''}{item.text}"
            return message.model_copy(update={"reasoning_content": reasoning})
        case CallItem():
            function = CalledFunction(name=item.name, arguments=item.arguments)
            calls = [*(message.tool_calls or []), PastToolCall(id=item.call_id, function=function)]
            return message.model_copy(update={"tool_calls": calls})


def _tool_choice(body: ResponseRequest) -> ToolMode | NamedTool | None:
    match body.tool_choice:
        case NamedFunction(name=name):
            return NamedTool(type="function", function=FunctionName(name=name))
        case "auto":
            return None  # means "auto" too, and is also allowed without tools
        case choice:
            return choice


def _response_format(body: ResponseRequest) -> ResponseFormat | None:
    flat = body.text.format if body.text else None
    if not isinstance(flat, FlatSchemaFormat):
        return flat
    named = flat.model_dump(by_alias=True, exclude={"type"})
    return JsonSchemaFormat.model_validate({"type": "json_schema", "json_schema": named})
