"""Objects and events of responses, field by field, against the models of OpenAI's client."""

import json
from typing import Any

import httpx
import pytest
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from tinyllm_serve.testing import Server

Json = dict[str, Any]

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

FUNCTION = {"name": "weather", "parameters": {"type": "object"}}
TOOLS = {"tools": [{"type": "function", "function": FUNCTION}]}
FLAT_TOOLS = {"tools": [{"type": "function", **FUNCTION, "strict": False}]}
SCHEMA = {"type": "json_schema", "name": "s", "schema": {"type": "object"}}

# Nullable fields that OpenAI's API always sends. The client's models give them a default.
CHAT_FIELDS = {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"}
CHOICE_FIELDS = {"index", "message", "logprobs", "finish_reason"}
CHUNK_FIELDS = {"id", "object", "created", "model", "choices", "system_fingerprint"}
DELTA_FIELDS = {"index", "delta", "logprobs", "finish_reason"}
RESPONSE_FIELDS = {
    *("id", "object", "created_at", "completed_at", "status", "error", "incomplete_details"),
    *("background", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model"),
    *("output", "parallel_tool_calls", "previous_response_id", "prompt_cache_key", "reasoning"),
    *("safety_identifier", "service_tier", "store", "temperature", "text", "tool_choice", "tools"),
    *("top_logprobs", "top_p", "truncation", "usage", "user"),
}


def post(server: Server, path: str, body: Json) -> Json:
    answer = httpx.post(server.url + path, json=body)
    assert answer.status_code == 200, answer.text
    fields: Json = answer.json()
    return fields


def events(server: Server, path: str, body: Json) -> list[Json]:
    answer = httpx.post(server.url + path, json={**body, "stream": True})
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if "data: " in line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def check(model: type[BaseModel], fields: Json) -> None:
    """Validate types and required fields, which the client itself does not."""
    model.model_validate_json(json.dumps(fields), strict=True)


def messages(text: str) -> Json:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 12}


CHATS: list[Json] = [
    messages("#think"),
    messages("#call") | TOOLS,
    messages("#long") | TOOLS | {"max_tokens": 5},
    messages("#json") | {"logprobs": True, "top_logprobs": 2, "n": 2},
]


@pytest.mark.parametrize("body", CHATS)
def test_chat_completions(scripted: Server, body: Json) -> None:
    whole = post(scripted, CHAT, body)
    check(ChatCompletion, whole)
    assert whole.keys() >= CHAT_FIELDS
    for choice in whole["choices"]:
        assert choice.keys() >= CHOICE_FIELDS
        assert choice["message"].keys() >= {"role", "content", "refusal"}
        assert choice["logprobs"] is None or choice["logprobs"].keys() == {"content", "refusal"}
    for usage in (None, {"include_usage": True}):
        chunks = events(scripted, CHAT, body | {"stream_options": usage})
        first = chunks[0]["choices"][0]["delta"]
        assert first == {"role": "assistant", "content": "", "refusal": None}
        for chunk in chunks:
            check(ChatCompletionChunk, chunk)
            assert chunk.keys() >= CHUNK_FIELDS
            assert ("usage" in chunk) == (usage is not None)
            assert all(choice.keys() == DELTA_FIELDS for choice in chunk["choices"])
        assert usage is None or (chunks[0]["usage"], chunks[-1]["choices"]) == (None, [])


def test_an_answer_of_calls_alone_has_the_content_null(scripted: Server) -> None:
    message = post(scripted, CHAT, messages("#rome") | TOOLS)["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'
    plain = post(scripted, CHAT, messages("#json"))["choices"][0]["message"]
    assert plain == {"role": "assistant", "content": '{"a":1}', "refusal": None}


@pytest.mark.parametrize("options", [{}, {"logprobs": 2}, {"n": 2, "echo": True}])
def test_completions(scripted: Server, options: Json) -> None:
    body = {"prompt": "#json", **options}
    whole = post(scripted, COMPLETIONS, body)
    check(Completion, whole)
    assert whole.keys() >= {"usage", "system_fingerprint"}
    chunks = events(scripted, COMPLETIONS, body | {"stream_options": {"include_usage": True}})
    assert all(chunk.keys() >= {"usage", "system_fingerprint"} for chunk in chunks)
    for choice in [choice for chunk in [whole, *chunks] for choice in chunk["choices"]]:
        assert choice.keys() == {"index", "text", "logprobs", "finish_reason"}
    for chunk in chunks:
        for choice in chunk["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"  # null in OpenAI's streams
        check(Completion, chunk)
    assert all("usage" not in chunk for chunk in events(scripted, COMPLETIONS, body))


@pytest.mark.parametrize("likeliest", [0, 1])
def test_a_chosen_token_is_among_the_likeliest(pico: Server, likeliest: int) -> None:
    body = {"prompt": "what", "logprobs": likeliest, "temperature": 5, "seed": 1}
    found = post(pico, COMPLETIONS, body)["choices"][0]["logprobs"]
    for token, logprob, top in zip(
        found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
    ):
        assert top[token] >= logprob  # of equal texts, the likeliest is kept
    assert max(map(len, found["top_logprobs"])) == likeliest + 1


RESPONSE_BODIES: list[Json] = [
    {"input": "#think", "include": ["reasoning.encrypted_content"], "user": "u"},
    {"input": "#think", "max_output_tokens": 5, "instructions": "Be brief."},
    {"input": "#call", **FLAT_TOOLS, "tool_choice": "auto", "metadata": {"a": "b"}},
    {"input": "#long", **FLAT_TOOLS, "max_output_tokens": 5, "temperature": 0.5, "top_p": 0.5},
    {"input": "#rome", **FLAT_TOOLS, "tool_choice": {"type": "function", "name": "weather"}},
    {"input": "#json", "text": {"format": SCHEMA}, "max_output_tokens": 20},
    {"input": "#json", "reasoning": {"effort": "low", "summary": "auto"}},
]


@pytest.mark.parametrize("body", RESPONSE_BODIES)
def test_responses(scripted: Server, body: Json) -> None:
    whole = post(scripted, RESPONSES, body)
    check(Response, whole)
    assert whole.keys() >= RESPONSE_FIELDS
    streamed = events(scripted, RESPONSES, body)
    for event in streamed:
        EVENT.validate_json(json.dumps(event), strict=True)
    first, last = streamed[0]["response"], streamed[-1]["response"]
    assert first.keys() == last.keys() == whole.keys()
    ids = {"id", "created_at", "completed_at", "output", "usage"}
    assert {key: last[key] for key in last.keys() - ids} == {
        key: whole[key] for key in whole.keys() - ids
    }
    ended = [event["item"] for event in streamed if event["type"] == "response.output_item.done"]
    assert ended == last["output"]
    assert [item["status"] for item in ended] == [item["status"] for item in whole["output"]]


def test_embeddings_and_models(pico: Server) -> None:
    check(CreateEmbeddingResponse, post(pico, "/v1/embeddings", {"input": ["a", "b"]}))
    for model in httpx.get(f"{pico.url}/v1/models").json()["data"]:
        check(Model, model)


def test_strings_of_a_request_come_back_unless_refused(scripted: Server) -> None:
    """A lone surrogate is valid in JSON, and invalid in UTF-8."""
    fields = ("instructions", "user", "safety_identifier", "prompt_cache_key", "text", "x\ud800")
    bodies: list[Json] = [{name: "\ud800"} for name in fields]
    tool = FLAT_TOOLS["tools"][0]
    bodies += [{"metadata": {"\ud800": "\ud800"}}, {"tools": [tool | {"description": "\ud800"}]}]
    bodies += [{"tools": [tool | {"name": "\ud800"}]}]
    for body in bodies:
        content = json.dumps({"input": "#rome", **body})
        header = {"Content-Type": "application/json"}
        answer = httpx.post(scripted.url + RESPONSES, content=content, headers=header)
        assert answer.status_code in (200, 400), body
        assert answer.json()


def test_a_schema_with_a_number_beyond_float64_is_refused(scripted: Server) -> None:
    content = '{"input": "#rome", "tools": [{"type": "function", "name": "f", "parameters": '
    content += '{"type": "object", "properties": {"a": {"const": -1e999}}}}]}'
    header = {"Content-Type": "application/json"}
    answer = httpx.post(scripted.url + RESPONSES, content=content, headers=header)
    assert answer.status_code == 400
    assert "tools.0.parameters: expected numbers up to 1.8e308" in answer.text
