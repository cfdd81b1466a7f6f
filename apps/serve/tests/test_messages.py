"""Anthropic's Messages API through the official client, and with a request like Claude Code's."""

import json
from typing import Any, Literal

import anthropic
import httpx
import pytest
from anthropic.types import Message, ToolParam
from pydantic import BaseModel
from tinyllm_engine import PromptTooLongError
from tinyllm_serve.generation.parts import CallArguments, CallEnd, CallStart
from tinyllm_serve.http.errors import ApiError, api_of, as_api_error
from tinyllm_serve.http.sse import lost_stream_end
from tinyllm_serve.protocol.anthropic import CountTokensRequest, MessagesRequest
from tinyllm_serve.protocol.chat import ChatRequest
from tinyllm_serve.protocol.messages import AssistantMessage, ToolMessage
from tinyllm_serve.routes.messages_input import as_chat
from tinyllm_serve.routes.messages_output import ContentBlocks
from tinyllm_serve.testing import Server

WEATHER: ToolParam = {
    "name": "weather",
    "description": "the weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"const": "Bern"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
ONE_CALL: dict[str, Any] = {"type": "auto", "disable_parallel_tool_use": True}
AT_ONCE: dict[str, Any] = {"thinking": {"type": "disabled"}}
EPHEMERAL = {"type": "ephemeral", "scope": "global"}
HEADER = "x-anthropic-billing-header: cc_version=2.1; cch={};"
WEB = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}

# The fields of Claude Code 2.1, with short texts.
CLAUDE_CODE: dict[str, Any] = {
    "model": "strict",
    "max_tokens": 64,
    "stream": True,
    "system": [
        {"type": "text", "text": HEADER.format("0")},
        {"type": "text", "text": "You are Claude Code.", "cache_control": EPHEMERAL},
        {"type": "text", "text": "\nBe brief.", "cache_control": EPHEMERAL},
    ],
    "messages": [
        {"role": "system", "content": "Today is Saturday."},
        {"role": "user", "content": [{"type": "text", "text": "#think"}]},
    ],
    "tools": [{**WEATHER, "eager_input_streaming": True, "cache_control": EPHEMERAL}, WEB],
    "metadata": {"user_id": json.dumps({"device_id": "d" * 300, "session_id": "s"})},
    "thinking": {"type": "adaptive", "display": "summarized"},
    "two words": 1,
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
}


def client(server: Server, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)


def ask(server: Server, content: Any, **options: Any) -> Message:
    """Request an answer to one message of the user."""
    asked = {"model": "scripted", "max_tokens": 64, **options}
    with client(server) as connection:
        return connection.messages.create(messages=[{"role": "user", "content": content}], **asked)


def converted(**fields: Any) -> tuple[ChatRequest, dict[str, object]]:
    """Return the chat request of a conversation, and the fields of its log line."""
    chat, log = as_chat(CountTokensRequest.model_validate({"model": "m", **fields}))
    return chat, {name: value for name, value in log.items() if value is not None}


def test_an_answer_has_thinking_text_and_counts(scripted: Server) -> None:
    answer = ask(scripted, "#think")
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert (answer.content[0].thinking, answer.content[1].text) == ("Hm.", "It is so.")
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert (answer.role, answer.model, answer.usage.output_tokens) == ("assistant", "scripted", 6)
    assert [block.type for block in ask(scripted, "#json", **AT_ONCE).content] == ["text"]


def test_a_last_message_of_the_assistant_is_continued(scripted: Server) -> None:
    turns: Any = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "</think>"}]
    with client(scripted) as connection:
        answer: Any = connection.messages.create(model="scripted", max_tokens=64, messages=turns)
    assert [block.text.strip() for block in answer.content] == ["It is so."]


def test_cached_tokens_are_counted_apart(scripted: Server) -> None:
    system = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
    first, second = (ask(scripted, "#json", system=system).usage for _ in range(2))
    assert second.cache_read_input_tokens
    assert second.cache_creation_input_tokens == 0
    assert second.input_tokens + second.cache_read_input_tokens == first.input_tokens


def test_the_reason_of_the_end_is_reported(scripted: Server) -> None:
    answer = ask(scripted, "#json", stop_sequences=["x", ":"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", ":")
    assert answer.content[0].text == '{"a"'
    assert ask(scripted, "#json", stop_sequences=["x"], max_tokens=2).stop_reason == "max_tokens"


def test_the_events_of_a_stream_build_the_answer(scripted: Server) -> None:
    turn: Any = {"role": "user", "content": "#think"}
    with (
        client(scripted) as connection,
        connection.messages.stream(model="scripted", max_tokens=64, messages=[turn]) as stream,
    ):
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    block = ["content_block_start", "content_block_delta"]
    assert [kind for kind in kinds if kind not in ("thinking", "text", "signature")] == [
        *("message_start", *block, "content_block_delta", "content_block_stop"),
        *(*block, "content_block_delta", "content_block_stop", "message_delta", "message_stop"),
    ]
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 6)


def test_a_call_is_a_block_and_its_result_is_accepted(scripted: Server) -> None:
    first = ask(scripted, "#call", tools=[WEATHER], tool_choice=ONE_CALL)
    text, call = first.content
    assert (text.type, text.text, first.stop_reason) == ("text", "Let me see.", "tool_use")
    assert (call.type, call.name, call.input) == ("tool_use", "weather", {"city": "Oslo"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "#think"}
    conversation: list[Any] = [
        {"role": "user", "content": "#call"},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    with client(scripted) as connection:
        second = connection.messages.create(
            model="scripted", max_tokens=64, messages=conversation, tools=[WEATHER]
        )
        with connection.messages.stream(
            model="scripted",
            max_tokens=64,
            messages=[{"role": "user", "content": "#long"}],
            tools=[WEATHER],
        ) as stream:
            final = stream.get_final_message()
    assert second.content[-1].text == "It is so."
    assert [block.to_dict()["input"] for block in final.content] == [{"city": "Oslo}"}]


def test_a_demanded_call_conforms_to_its_schema(scripted: Server) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        options = {"tool_choice": {**choice, "disable_parallel_tool_use": True}, **AT_ONCE}
        answer = ask(scripted, "#call", tools=[WEATHER], **options)
        (call,) = answer.content  # the model would generate "Let me see." first
        assert (answer.stop_reason, call.to_dict()["input"]) == ("tool_use", {"city": "Bern"})


def test_the_input_of_a_call_is_an_object(scripted: Server) -> None:
    cut = ask(scripted, "#long", tools=[WEATHER], max_tokens=5)
    assert cut.stop_reason == "max_tokens"
    assert [block.to_dict()["input"] for block in cut.content] == [{}]
    for text in ('{"city": Oslo}', '{"n": NaN}', '{"n": [1e999]}'):
        blocks = ContentBlocks()
        for part in (CallStart("f"), CallArguments(text), CallEnd()):
            [*blocks.add(part)]
        assert blocks.bodies[0]["input"] == {"arguments": text}


def test_an_output_format_is_enforced(pico: Server) -> None:
    class Answer(BaseModel):
        city: Literal["Bern"]

    with client(pico) as connection:
        parsed = connection.messages.parse(
            model="pico",
            max_tokens=64,
            messages=[{"role": "user", "content": "where?"}],
            output_format=Answer,
        )
    assert parsed.parsed_output == Answer(city="Bern")


def test_a_prompt_is_counted_with_its_tools(scripted: Server) -> None:
    turn: Any = {"role": "user", "content": "#json"}
    with client(scripted) as connection:
        count = connection.messages.count_tokens
        plain = count(model="scripted", messages=[turn]).input_tokens
        with_tools = count(model="scripted", messages=[turn], tools=[WEATHER]).input_tokens
        long: Any = {"role": "user", "content": "word " * 3000}
        assert count(model="scripted", messages=[long]).input_tokens > 3000  # beyond the context
    assert plain == ask(scripted, "#json").usage.input_tokens
    assert with_tools > plain + 10


def test_the_prompt_of_a_continued_answer_is_counted_as_it_is_sent(pico: Server) -> None:
    turns: Any = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello!"}]
    with client(pico) as connection:
        counted = connection.messages.count_tokens(model="pico", messages=turns)
        answer = connection.messages.create(model="pico", messages=turns, max_tokens=1)
    assert counted.input_tokens == answer.usage.input_tokens


def test_a_request_of_claude_code_is_answered(strict: Server) -> None:
    answer = httpx.post(f"{strict.url}/v1/messages?beta=true", json=CLAUDE_CODE)
    assert answer.status_code == 200, answer.text
    assert '"text":" so."' in answer.text
    assert "[DONE]" not in answer.text
    left_out = ["*", "context_management", "thinking.display"]
    line = strict.wait_for("request", path="/v1/messages", tools_left_out=1)
    assert line["fields_left_out"] == [*left_out, "tools.eager_input_streaming"]
    assert str(line["user"]).startswith('{"device_id": "ddd')


@pytest.mark.parametrize(
    ("thinking", "variables"),
    [
        (None, {"reasoning_effort": "xhigh"}),
        ("adaptive", {"enable_thinking": True, "reasoning_effort": "xhigh"}),
        ("disabled", {"enable_thinking": False}),
    ],
)
def test_an_effort_does_not_switch_thinking_on(
    thinking: str | None, variables: dict[str, object]
) -> None:
    switch = {} if thinking is None else {"thinking": {"type": thinking}}
    chat, log = converted(
        messages=CLAUDE_CODE["messages"], output_config={"effort": "max"}, **switch
    )
    assert chat.template_variables.model_dump(exclude_none=True) == variables
    assert log == {}


def test_the_billing_header_is_not_a_part_of_the_prompt() -> None:
    chat, log = converted(system=CLAUDE_CODE["system"], messages=CLAUDE_CODE["messages"])
    assert [message.content for message in chat.messages[:2]] == [
        "You are Claude Code.\nBe brief.",
        "Today is Saturday.",
    ]
    assert log == {}


def test_results_are_messages_of_their_own() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "a" * 1000}}
    results = [
        {"type": "tool_result", "tool_use_id": "a", "content": [image], "cache_control": EPHEMERAL},
        {"type": "tool_result", "tool_use_id": "b", "content": "no file", "is_error": True},
        {"type": "tool_result", "tool_use_id": "c"},
        {"type": "text", "text": "why?"},
    ]
    answer = [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "redacted_thinking", "data": "gAAA"},
        {"type": "text", "text": "Let me see.", "citations": None},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": [1]}, "caller": {"type": "d"}},
    ]
    turns = [("user", "a"), ("assistant", answer), ("user", results), ("system", "b")]
    chat, log = converted(messages=[{"role": role, "content": each} for role, each in turns])
    roles = ["user", "assistant", "tool", "tool", "tool", "user", "system"]
    assert [message.role for message in chat.messages] == roles
    said, *tools = chat.messages[1:5]
    assert isinstance(said, AssistantMessage)
    assert (said.reasoning_content, said.content) == ("Hm.", "Let me see.")
    assert said.tool_calls
    assert said.tool_calls[0].function.arguments == '{"x": [1]}'
    assert [
        (each.tool_call_id, each.content) for each in tools if isinstance(each, ToolMessage)
    ] == [
        ("a", "[image left out: the model reads text alone]"),
        ("b", "Error: no file"),
        ("c", ""),
    ]
    names = ["messages.content.caller", "messages.content.data"]
    assert log == {"fields_left_out": names, "blocks_left_out": 2}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "messages: "),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"max_tokens": None}, "max_tokens: "),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "leave out images"),
        ({"messages": [{"role": "judge", "content": "a"}]}, "messages.0.role: "),
        ({"messages": [{"role": "assistant", "content": ""}]}, "expected text alone in a last"),
        ({"messages": [{"role": "assistant", "content": []}]}, "expected text alone in a last"),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "a"}]}]},
            "expected no thinking in a message of the role user",
        ),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema: "),
        ({"tools": [WEATHER, WEB], "tool_choice": {"type": "any"}}, "got web_search_20250305"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "name: expected a name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "g"}}, "got g"),
        ({"stop_sequences": [""]}, "stop_sequences.0: "),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}, "output"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, "tokens > 1023 maximum"),
    ],
)
def test_a_wrong_request_is_refused(scripted: Server, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(scripted, "#think", extra_body=fields)
    assert caught.value.type == "invalid_request_error"
    assert message in str(caught.value.api_message)
    scripted.wait_for("request", id=caught.value.request_id)


def test_errors_have_the_types_of_anthropic(guarded: Server) -> None:
    errors: list[tuple[int, object]] = []
    for key, model, text in (
        ("third", "pico", "a"),
        ("first", "opus", "a"),
        ("first", "pico", "a" * 60_000),
    ):
        with client(guarded, key) as connection, pytest.raises(anthropic.APIStatusError) as caught:
            connection.messages.create(
                model=model, max_tokens=1, messages=[{"role": "user", "content": text}]
            )
        errors.append((caught.value.status_code, caught.value.type))
    kinds = ["authentication_error", "not_found_error", "request_too_large"]
    assert errors == list(zip((401, 404, 413), kinds, strict=True))


def test_a_key_may_come_as_x_api_key(guarded: Server) -> None:
    turn = {"role": "user", "content": "a"}
    body = {"model": "pico", "max_tokens": 1, "messages": [turn]}
    for key, status in (("second", 200), ("third", 401)):
        answer = httpx.post(f"{guarded.url}/v1/messages", json=body, headers={"x-api-key": key})
        assert answer.status_code == status


def test_a_failed_stream_ends_with_an_event_of_its_api() -> None:
    scope = {"path": "/v1/messages", "state": {"request_id": "req-1"}}
    event = lost_stream_end(ApiError(503, "lost"), scope, b"", b"").decode()
    name, data = event.strip().split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "lost"},
        "request_id": "req-1",
    }


def test_a_prompt_that_exceeds_the_pages_is_too_long() -> None:
    message = (
        "prompt: expected at most 511 tokens, the limit of max_model_len and of the engine's "
        "pages, got 600: shorten it, or raise the limit; this model's maximum context length is "
        "512 tokens"
    )
    scope = {"path": "/v1/messages", "state": {}}
    error = as_api_error(PromptTooLongError(message))
    body: Any = api_of(scope).error_body(error, scope)
    assert body["error"]["message"].startswith("prompt is too long: 600 tokens > 511 maximum")


def test_a_request_has_the_sampling_of_a_chat() -> None:
    fields = {"max_tokens": 3, "temperature": 0.5, "top_p": 0.5, "top_k": 0, "stop_sequences": []}
    turn = {"role": "user", "content": "a"}
    body = MessagesRequest.model_validate({"model": "m", "messages": [turn], **fields})
    chat, _ = as_chat(body)
    assert (chat.token_limit, chat.temperature, chat.top_p, chat.top_k) == (3, 0.5, 0.5, 0)
    assert chat.stops == []
