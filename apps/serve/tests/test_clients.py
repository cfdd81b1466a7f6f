"""Other clients: curl, LangChain, and the OpenAPI document's own."""

import json
import re
import subprocess
from itertools import product

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import SecretStr
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from tinyllm_serve.testing import Server

QUESTION = "what does rmsnorm do?"


def curl(*arguments: str) -> bytes:
    command = ["curl", "--silent", "--no-buffer", "--max-time", "60", *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout


def test_curl(pico: Server) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": QUESTION}], "stream": True})
    as_json = "Content-Type: application/json"
    said = curl(f"{pico.url}/v1/chat/completions", "--header", as_json, "--data", body).decode()
    *events, end, nothing = said.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "root mean square" in "".join(deltas)


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"#think of {city}"


def langchain(server: Server, model: str) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{server.url}/v1", api_key=SecretStr("none"), model=model)


def test_langchain(pico: Server, scripted: Server) -> None:
    model = langchain(pico, "pico")
    assert "root mean square" in model.invoke(QUESTION).text
    assert "".join(piece.text for piece in model.stream(QUESTION)) == model.invoke(QUESTION).text
    calling = langchain(scripted, "scripted").bind_tools([weather], parallel_tool_calls=False)
    answer = calling.invoke([HumanMessage("#call")])
    assert isinstance(answer, AIMessage)
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [
        ("weather", {"city": "Oslo"})
    ]
    embeddings = OpenAIEmbeddings(
        base_url=f"{pico.url}/v1",
        api_key=SecretStr("none"),
        model="pico",
        check_embedding_ctx_length=False,
    )
    near, far = embeddings.embed_documents(["a cat", "an inverse square root"])
    asked = embeddings.embed_query("a cat")
    assert asked == pytest.approx(near, abs=1e-5)
    assert sum(a * b for a, b in zip(asked, far, strict=True)) < 0.999


def test_metrics_are_prometheus_text(pico: Server) -> None:
    answer = httpx.get(f"{pico.url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "# TYPE tinyllm:time_to_first_token_seconds histogram" in answer.text


def test_the_interface_is_described_without_a_network(pico: Server) -> None:
    page = httpx.get(f"{pico.url}/docs").text
    needed = re.findall(r"""(?:src|href)=["']([^"']+)""", page)
    assert len(needed) > 2
    for path in needed:  # behind the server's own address: one of somewhere else is none
        assert httpx.get(pico.url + path).status_code == 200


BODY_LIMIT = 50_000  # bytes, of `guarded`
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def test_the_document_tells_the_truth(guarded: Server) -> None:
    document = schemathesis.openapi.from_url(f"{guarded.url}/openapi.json")
    key = {"Authorization": "Bearer first"}

    def holds(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict):
            for name in LENGTHS:
                if isinstance(case.body.get(name), int) and case.body[name] > 8:
                    case.body[name] = 8
        # A schema cannot say which ids a vocabulary has, or how long a prompt may be. Nor how long
        # a body: one that is too long is refused for that, whatever else is wrong with it.
        excluded = [positive_data_acceptance]
        answer = case.call(headers=key)
        if answer.status_code == 413:
            assert len(answer.request.body or b"") > BODY_LIMIT
            excluded.append(negative_data_rejection)
        case.validate_response(answer, excluded_checks=excluded)

    operations = [result.ok() for result in document.get_all_operations()]
    assert len(operations) >= 11
    few = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    for operation, mode in product(operations, GenerationMode):
        if mode is GenerationMode.POSITIVE or operation.body:
            few(given(operation.as_strategy(generation_mode=mode))(holds))()
