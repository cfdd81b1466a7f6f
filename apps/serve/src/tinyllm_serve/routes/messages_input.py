"""Conversion of a request of POST /v1/messages to one of chat completions."""

import json
from collections.abc import Iterator, Sequence

from tinyllm_serve.http.request_log import LogFields
from tinyllm_serve.protocol.anthropic import (
    BILLING_HEADER,
    Block,
    CountTokensRequest,
    CustomTool,
    MessagesRequest,
    Other,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
    unknown_fields,
)
from tinyllm_serve.protocol.chat import ChatRequest, TemplateVariables
from tinyllm_serve.protocol.messages import (
    AssistantMessage,
    Message,
    PastFunction,
    PastToolCall,
    SystemMessage,
    ToolMessage,
    UserMessage,
    placeholder,
)
from tinyllm_serve.protocol.output_format import JsonSchemaFormat
from tinyllm_serve.protocol.tools import Function, FunctionName, NamedTool, Tool, ToolMode

MAX_LOGGED = 16
"""The most names of fields in a log line."""

_SAME = {"model", "max_tokens", "stream", "temperature", "top_p", "top_k"}
"""Fields that mean the same in both requests. A request to count tokens has only the first."""


def as_chat(body: CountTokensRequest) -> tuple[ChatRequest, LogFields]:
    """Convert a request. The second result has names and numbers of the parts left out.

    Raises:
        ValidationError: if fields exclude each other, or a block is not valid.
    """
    system = body.system if isinstance(body.system, str) else _instructions(body.system or [])
    messages: list[Message] = []
    if system:
        messages.append(SystemMessage(role="system", content=system))
    for turn in body.messages:
        messages += _messages(turn)
    tools = [
        Tool(
            type="function",
            function=Function(
                name=tool.name,
                description=tool.description,
                parameters=tool.input_schema,
                strict=tool.strict,
            ),
        )
        for tool in body.custom_tools
    ]
    choice = body.tool_choice
    answered = body if isinstance(body, MessagesRequest) else None
    chat = ChatRequest(
        messages=messages,
        tools=tools or None,
        tool_choice=None if choice is None else _tool_choice(choice),
        parallel_tool_calls=False if choice and choice.disable_parallel_tool_use else None,
        stop=None if answered is None else answered.stop_sequences,
        continue_final_message=body.continues,
        response_format=_response_format(body),
        chat_template_kwargs=_template_variables(body),
        **body.model_dump(include=_SAME),
    )
    chat.with_schema_names(
        f"tools.{index}.input_schema"
        for index, tool in enumerate(body.tools)
        if isinstance(tool, CustomTool)
    )
    return chat, _left_out(body)


def _template_variables(body: CountTokensRequest) -> TemplateVariables:
    """Return the switch of the reasoning, and its effort, which never switches it on."""
    thinking = None if body.thinking is None else body.thinking.type != "disabled"
    effort = None if body.output_config is None else body.output_config.effort
    if effort is None or thinking is False:
        return TemplateVariables(enable_thinking=thinking)
    return TemplateVariables.of_effort(effort).model_copy(update={"enable_thinking": thinking})


def _messages(turn: Turn) -> Iterator[Message]:
    """Yield the messages of a turn: results of tools, one each, then the text beside them."""
    match turn.role:
        case "assistant":
            yield _answer(turn.blocks)
        case "system":
            yield SystemMessage(role="system", content=_instructions(turn.blocks))
        case "user":
            results = [block for block in turn.blocks if isinstance(block, ToolResultBlock)]
            for each in results:
                yield ToolMessage(role="tool", content=_result(each), tool_call_id=each.tool_use_id)
            text = _text(turn.blocks)
            if text or not results:
                yield UserMessage(role="user", content=text)


def _answer(blocks: Sequence[Block]) -> AssistantMessage:
    """Join the blocks of an answer. Encrypted reasoning is left out."""
    reasoning = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    calls = [
        PastToolCall(
            id=block.id, function=PastFunction(name=block.name, arguments=json.dumps(block.input))
        )
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    return AssistantMessage(
        role="assistant",
        content=_text(blocks) or None,
        reasoning_content=reasoning or None,
        tool_calls=calls or None,
    )


def _text(blocks: Sequence[Block]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, TextBlock))


def _instructions(blocks: Sequence[Block]) -> str:
    """Return the text of a system message, without Claude Code's billing header."""
    return _text([block for block in blocks if not _text([block]).startswith(BILLING_HEADER)])


def _result(block: ToolResultBlock) -> str:
    """Return the result of a tool as text. Templates have no mark for errors, but a text can."""
    parts = [block.content] if isinstance(block.content, str) else map(_part, block.content)
    text = "\n".join(parts)
    return f"Error: {text}" if block.is_error else text


def _part(part: TextBlock | Other) -> str:
    if isinstance(part, TextBlock):
        return part.text
    return placeholder(part.type)


def _tool_choice(choice: ToolChoice) -> ToolMode | NamedTool | None:
    match choice.type:
        case "auto":
            return None  # means "auto" too, and is also allowed without tools
        case "none":
            return "none"
        case "any":
            return "required"
    return NamedTool(type="function", function=FunctionName(name=choice.name or ""))


def _response_format(body: CountTokensRequest) -> JsonSchemaFormat | None:
    if body.output_config is None or body.output_config.format is None:
        return None
    named = {"name": "output", "schema": body.output_config.format.json_schema}
    return JsonSchemaFormat.model_validate({"type": "json_schema", "json_schema": named})


def _left_out(body: CountTokensRequest) -> LogFields:
    """Return the fields of the log line that say what the model does not see."""
    blocks = 0
    for turn in body.messages:
        for block in turn.blocks:
            blocks += isinstance(block, RedactedThinkingBlock)
            if isinstance(block, ToolResultBlock) and not isinstance(block.content, str):
                blocks += sum(isinstance(part, Other) for part in block.content)
    names: set[str] = set()
    for name in unknown_fields(body):
        names.add(name)
        if len(names) == MAX_LOGGED:
            break
    return {
        "fields_left_out": sorted(names) or None,
        "tools_left_out": len(body.other_tools) or None,
        "blocks_left_out": blocks or None,
    }
