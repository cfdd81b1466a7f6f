"""Conversion of a request of POST /v1/responses to one of chat completions."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from tinyllm_serve.protocol.chat import ChatRequest
from tinyllm_serve.protocol.messages import (
    AssistantMessage,
    Message,
    PastFunction,
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
    FunctionTool,
    InputItem,
    InputTokensRequest,
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

_SAME = ("temperature", "top_p", "structured_outputs", "ignore_eos", "priority", "cache_salt")
"""Fields of an answer that mean the same in both requests."""


def as_chat(body: InputTokensRequest) -> ChatRequest:
    """Convert a request.

    Raises:
        ValidationError: if fields exclude each other, or an item is no valid message.
    """
    messages: list[Message] = []
    if body.instructions is not None:
        messages.append(SystemMessage(role="system", content=body.instructions))
    if isinstance(body.input, str):
        messages.append(UserMessage(role="user", content=body.input))
    else:
        messages += _messages(body.input)
    tools = [
        Tool(type="function", function=Function(**tool.model_dump(exclude={"type"})))
        for tool in body.functions
    ]
    answer: dict[str, Any] = {}
    if isinstance(body, ResponseRequest):
        answer = {name: getattr(body, name) for name in _SAME}
        answer["max_completion_tokens"] = body.max_output_tokens
    chat = ChatRequest(
        model=body.model,
        messages=messages,
        tools=tools or None,
        tool_choice=_tool_choice(body),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_response_format(body),
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        **answer,
    )
    return chat.with_schema_names(
        f"tools.{index}.parameters"
        for index, tool in enumerate(body.tools or [])
        if isinstance(tool, FunctionTool)
    )


def _messages(items: Sequence[InputItem]) -> list[Message]:
    """Convert items. Reasoning, text and calls of one answer are one message."""
    messages: list[Message] = []
    numbered = zip(_answer_numbers(items), items, strict=True)
    for number, group in groupby(numbered, itemgetter(0)):
        own = [item for _, item in group]
        messages += map(_message, own) if number is None else [_answer(own)]
    return messages


def _answer_numbers(items: Sequence[InputItem]) -> Iterator[int | None]:
    """Yield the number of the answer of each item; None if an item belongs to no answer.

    An answer has one text. After it, reasoning or another text begins the next answer.
    """
    number, has_text = 0, False
    for item in items:
        if not _is_in_answer(item):
            number, has_text = number + 1, False
            yield None
            continue
        if has_text and not isinstance(item, CallItem):
            number, has_text = number + 1, False
        has_text |= isinstance(item, MessageItem)
        yield number


def _is_in_answer(item: InputItem) -> bool:
    """Return True if an item is a part of an answer of the model."""
    return isinstance(item, ReasoningItem | CallItem) or (
        isinstance(item, MessageItem) and item.role == "assistant"
    )


def _message(item: InputItem) -> Message:
    """Convert an item that is no part of an answer."""
    match item:
        case MessageItem(role="user"):
            return UserMessage(role="user", content=text_of(item.content))
        case MessageItem():
            return SystemMessage(role="system", content=text_of(item.content))
    assert isinstance(item, CallOutputItem)  # all other items belong to answers
    return ToolMessage(role="tool", content=text_of(item.output), tool_call_id=item.call_id)


def _answer(items: Iterable[InputItem]) -> AssistantMessage:
    """Join the items of one answer.

    Reasoning is joined at the end: to extend a text by each of 16,000 items would copy 80 GB.
    """
    content: str | None = None
    reasoning: list[str] = []
    calls: list[PastToolCall] = []
    for item in items:
        match item:
            case MessageItem():
                content = text_of(item.content)
            case ReasoningItem():
                reasoning.append(item.text)
            case CallItem():
                function = PastFunction(name=item.name, arguments=item.arguments)
                calls.append(PastToolCall(id=item.call_id, function=function))
    return AssistantMessage(
        role="assistant",
        content=content,
        reasoning_content="".join(reasoning) if reasoning else None,
        tool_calls=calls or None,
    )


def _tool_choice(body: InputTokensRequest) -> ToolMode | NamedTool | None:
    match body.tool_choice:
        case NamedFunction(name=name):
            return NamedTool(type="function", function=FunctionName(name=name))
        case "auto":
            return None  # means "auto" too, and is also allowed without tools
        case choice:
            return choice


def _response_format(body: InputTokensRequest) -> ResponseFormat | None:
    flat = body.text.format if body.text else None
    if not isinstance(flat, FlatSchemaFormat):
        return flat
    named = flat.model_dump(by_alias=True, exclude={"type"})
    return JsonSchemaFormat.model_validate({"type": "json_schema", "json_schema": named})
