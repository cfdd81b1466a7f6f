"""Grammars that exceed a limit are refused, or end with an error, and stall no other request."""

import asyncio
import json
import threading

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from openai.types.shared_params import ResponseFormatJSONSchema
from tinyllm_serve.application import make_application
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings
from tinyllm_serve.testing import Server

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "what is rope?"}]
TEXT = {"type": "string"}
# Each item is one of two objects. Their intersection has 2**10 objects, whose properties may come
# in any order: the matcher exceeds its limit after a few tokens.
EXPONENTIAL: dict[str, object] = {
    "allOf": [
        {"anyOf": [{"type": "object", "properties": {f"{side}{item}": TEXT}} for side in "ab"]}
        for item in range(10)
    ]
}


def as_format(schema: dict[str, object]) -> ResponseFormatJSONSchema:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_a_grammar_that_exceeds_its_limits_is_an_error_500(pico: Server) -> None:
    with client(pico) as connection, pytest.raises(openai.InternalServerError) as raised:
        connection.chat.completions.create(
            model="pico", messages=QUESTION, response_format=as_format(EXPONENTIAL), max_tokens=200
        )
    assert (raised.value.status_code, raised.value.code) == (500, "grammar_limit")
    assert "simplify it" in raised.value.message


def test_a_stream_whose_grammar_exceeds_its_limits_ends_with_an_error(pico: Server) -> None:
    with client(pico) as connection:
        stream = connection.chat.completions.create(
            model="pico",
            messages=QUESTION,
            response_format=as_format(EXPONENTIAL),
            max_tokens=200,
            stream=True,
        )
        endings = []
        with pytest.raises(openai.APIError) as raised:
            endings += [chunk.choices[0].finish_reason for chunk in stream]
    assert raised.value.code == "grammar_limit"
    assert not any(endings)


def test_a_response_whose_grammar_exceeds_its_limits_has_failed(pico: Server) -> None:
    form = {"type": "json_schema", "name": "answer", "schema": EXPONENTIAL}
    body = {"model": "pico", "input": "what is rope?", "text": {"format": form}}
    answer = httpx.post(f"{pico.url}/v1/responses", json=body, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "grammar_limit")


@pytest.mark.parametrize("seed", [1, 2])
def test_five_hundred_optional_properties_give_json(pico: Server, seed: int) -> None:
    properties = {f"property_{index}": TEXT for index in range(500)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    with client(pico) as connection:
        answer = connection.chat.completions.create(
            model="pico",
            messages=QUESTION,
            response_format=as_format(schema),
            max_tokens=24,
            temperature=2,
            seed=seed,
        )
    (choice,) = answer.choices
    text = choice.message.content or ""
    assert text.startswith("{")
    if choice.finish_reason == "stop":
        assert set(json.loads(text)) <= properties.keys()
    else:
        assert choice.finish_reason == "length"


@pytest.mark.parametrize("texts", [["x"] * 1025, ["x" * 70_000], ["x" * 70] * 1000])
def test_a_large_choice_is_refused(pico: Server, texts: list[str]) -> None:
    outputs = {"structured_outputs": {"choice": texts}}
    with client(pico) as connection, pytest.raises(openai.BadRequestError, match="choice"):
        connection.completions.create(model="pico", prompt="x", extra_body=outputs)


def test_the_largest_choice_is_accepted(pico: Server) -> None:
    outputs = {"structured_outputs": {"choice": [f"{index:064}" for index in range(1024)]}}
    with client(pico) as connection:
        answer = connection.completions.create(
            model="pico", prompt="x", max_tokens=100, extra_body=outputs
        )
    assert len(answer.choices[0].text) == 64


def test_a_large_schema_is_refused_before_it_is_written_as_json(pico: Server) -> None:
    """Python's lock is held meanwhile, 0.13 s for 260,000 numbers."""
    schema: dict[str, object] = {"type": "object", "enum": [1.25 * each for each in range(90_000)]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    form = {"type": "json_schema", "name": "answer", "schema": schema}
    bodies: list[tuple[str, dict[str, object]]] = [
        ("chat/completions", {"messages": QUESTION, "response_format": as_format(schema)}),
        ("chat/completions", {"messages": QUESTION, "tools": tools}),
        ("completions", {"prompt": "x", "response_format": as_format(schema)}),
        ("responses", {"input": "x", "text": {"format": form}}),
    ]
    for path, body in bodies:
        answer = httpx.post(f"{pico.url}/v1/{path}", json=body, timeout=60)
        assert answer.status_code == 400, answer.text
        assert "expected at most 262,144 characters: simplify it" in answer.text


def test_grammars_are_made_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions take milliseconds for the largest schemas, and other streams go on."""
    threads = []

    def note(*_arguments: object) -> None:
        threads.append(threading.current_thread())

    async def ask() -> None:
        service = Service(Settings())
        await service.start()
        transport = httpx.ASGITransport(make_application(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            chat = {"messages": QUESTION, "max_tokens": 1}
            assert (await client.post("/v1/chat/completions", json=chat)).is_success
            plain = {"prompt": "x", "max_tokens": 1}
            assert (await client.post("/v1/completions", json=plain)).is_success
        await service.close()

    monkeypatch.setattr("tinyllm_serve.routes.chat.chat_grammar", note)
    monkeypatch.setattr("tinyllm_serve.routes.completions.output_grammar", note)
    asyncio.run(ask())
    assert len(threads) == 2
    assert threading.main_thread() not in threads
