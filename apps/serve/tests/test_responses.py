"""Responses through the official client."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import FunctionToolParam, Response
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.http.sse import lost_stream_end
from tinyllm_serve.testing import Server

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object"},
    "strict": False,
}
CALLING: dict[str, Any] = {"tools": [WEATHER], "parallel_tool_calls": False}


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def ask(server: Server, conversation: str | list[Any], **options: Any) -> Response:
    """Request a response. `conversation` is a text, or items to send and items of responses."""
    with client(server) as connection:
        return connection.responses.create(input=conversation, **options)


def test_reasoning_is_an_item(scripted: Server) -> None:
    answer = ask(scripted, "#think", metadata={"a": "b"})
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.output[0].content[0].text == "Hm."
    assert (answer.output_text, answer.status) == ("It is so.", "completed")
    assert answer.usage.output_tokens_details.reasoning_tokens == 3
    assert answer.metadata == {"a": "b"}
    short = ask(scripted, "#think", max_output_tokens=5)
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert [item.status for item in short.output] == ["completed", "incomplete"]


def test_the_events_of_a_stream_build_the_response(scripted: Server) -> None:
    with (
        client(scripted) as connection,
        connection.responses.stream(input="#think", model="scripted") as stream,
    ):
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == "It is so."
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "It is so."
    thoughts = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(thoughts) == "Hm."


def test_a_prompt_is_counted_with_its_tools(scripted: Server) -> None:
    with client(scripted) as connection:
        count = connection.responses.input_tokens.count
        plain = count(model="scripted", input="#json").input_tokens
        assert count(input="#json", tools=[WEATHER]).input_tokens > plain + 10
        assert count(input="word " * 3000).input_tokens > 3000  # beyond the context
        with pytest.raises(openai.BadRequestError, match="nothing is stored"):
            count(input="#json", previous_response_id="r")
        with pytest.raises(openai.BadRequestError, match=r"input\.0"):
            count(input=[{"role": "tool", "content": "a"}])
    assert plain == ask(scripted, "#json").usage.input_tokens


def test_a_call_is_an_item_and_its_result_is_accepted(scripted: Server) -> None:
    first = ask(scripted, "#call", **CALLING)
    message, call = first.output
    assert message.content[0].text == "Let me see."
    assert (call.name, call.arguments) == ("weather", '{"city": "Oslo"}')
    conversation = [
        {"role": "user", "content": "#call"},
        *(item.to_dict() for item in first.output),
    ]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "#think"}
    assert ask(scripted, [*conversation, result], **CALLING).output_text == "It is so."


def test_dumped_items_are_accepted(scripted: Server) -> None:
    """`model_dump` includes all fields of OpenAI, also null fields."""
    conversation: list[dict[str, object]] = [{"role": "user", "content": "#call"}]
    first = ask(scripted, conversation, **CALLING)
    conversation += [item.model_dump() for item in first.output]
    parts = [{"type": "input_text", "text": "#think"}]
    conversation += [
        {"type": "function_call_output", "call_id": first.output[1].call_id, "output": parts}
    ]
    second = ask(scripted, conversation, **CALLING)
    assert second.output_text == "It is so."
    conversation += [
        *(item.model_dump() for item in second.output),
        {"role": "user", "content": "#json"},
    ]
    assert ask(scripted, conversation, previous_response_id=None).output_text == '{"a":1}'


def test_default_fields_of_agents_are_accepted(scripted: Server) -> None:
    answer = ask(
        scripted,
        "#think",
        store=False,
        background=False,
        include=["reasoning.encrypted_content"],
        reasoning={"effort": "xhigh", "summary": "auto"},
        text={"verbosity": "medium"},
        prompt_cache_key="session",
        safety_identifier="user-1",
        service_tier="auto",
    )
    assert answer.output_text == "It is so."
    assert answer.output[0].content[0].text == "Hm."  # the client sends this text back
    assert answer.reasoning.model_dump(include={"effort", "summary"}) == {
        "effort": "xhigh",
        "summary": None,
    }
    assert answer.prompt_cache_key == "session"
    scripted.wait_for("request", path="/v1/responses", user="user-1")


def test_an_incomplete_call_has_the_status_incomplete(scripted: Server) -> None:
    (call,) = ask(scripted, "#long", tools=[WEATHER], max_output_tokens=5).output
    assert (call.status, call.arguments) == ("incomplete", '{"city": "Os')
    with client(scripted) as connection:
        events = list(connection.responses.create(input="#long", stream=True, tools=[WEATHER]))
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert deltas == ["{", '"city": ', '"Os', 'lo}"', "}"]
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert done.arguments == "".join(deltas)
    assert events[-1].response.output[0].arguments == done.arguments


def test_encrypted_reasoning_can_be_sent_back(scripted: Server) -> None:
    include = ["reasoning.encrypted_content"]
    first = ask(scripted, "#think", include=include).output[0]
    assert ask(scripted, "#think").output[0].encrypted_content is None
    answer = {"role": "assistant", "content": "It is so."}
    plain: dict[str, object] = {"type": "reasoning", "summary": []}
    plain["content"] = first.model_dump()["content"]
    encoded: dict[str, object] = {
        "type": "reasoning",
        "summary": [],
        "encrypted_content": first.encrypted_content,
    }
    counts = [
        ask(scripted, [*reasoning, answer, {"role": "user", "content": "#json"}]).usage.input_tokens
        for reasoning in ([plain], [encoded], [])
    ]
    assert counts[0] == counts[1] > counts[2]
    with pytest.raises(openai.BadRequestError, match="encrypted_content"):
        ask(scripted, [{**encoded, "encrypted_content": "gAAAA"}, answer])


def test_a_stream_has_the_events_of_a_call(scripted: Server) -> None:
    with client(scripted) as connection:
        events = list(connection.responses.create(input="#call", stream=True, **CALLING))
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert done.arguments == '{"city": "Oslo"}'
    assert events[-1].response.output[1].name == "weather"


def test_a_stream_whose_replica_is_lost_ends_with_a_failed_response() -> None:
    created = b'event: a\ndata: {"response": {"id": "r", "error": null}, "sequence_number": 0}\n\n'
    latest = b'event: b\ndata: {"delta": "data: ", "sequence_number": 6}\n\n'
    error = ApiError(503, "lost", code="replica_lost")
    for sent, known, number in (((created, latest), {"id": "r"}, 7), ((b"", b""), {}, 0)):
        end = lost_stream_end(error, {"path": "/v1/responses"}, *sent).decode().split("\n\n")[:-1]
        names, data = zip(*(event.split("\ndata: ") for event in end), strict=True)
        first, last = map(json.loads, data)
        assert names == ("event: error", "event: response.failed")
        assert first["error"]["code"] == first["code"] == "replica_lost"
        assert [event["sequence_number"] for event in (first, last)] == [number, number + 1]
        reason = {"code": "replica_lost", "message": "lost"}
        assert last["response"] == {**known, "status": "failed", "error": reason}
