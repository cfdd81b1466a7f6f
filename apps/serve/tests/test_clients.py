"""Other clients: curl, LangChain, Prometheus, and schemathesis with the OpenAPI document."""

import json
import re
import subprocess
from dataclasses import fields
from itertools import product
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import SecretStr
from schemathesis import GenerationMode
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from tinyllm_engine.output import EngineStats
from tinyllm_serve.metrics import Metrics
from tinyllm_serve.testing import Server

QUESTION = "what does rmsnorm do?"


def curl(*arguments: str) -> bytes:
    command = ["curl", "--silent", "--no-buffer", "--max-time", "60", *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout


def test_curl(pico: Server) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": QUESTION}], "stream": True})
    as_json = "Content-Type: application/json"
    stream = curl(f"{pico.url}/v1/chat/completions", "--header", as_json, "--data", body).decode()
    *events, end, nothing = stream.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "root mean square" in "".join(deltas)


@tool
def weather(city: str) -> str:
    """Return the weather in a city."""
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
    query = embeddings.embed_query("a cat")
    assert query == pytest.approx(near, abs=1e-5)
    assert sum(a * b for a, b in zip(query, far, strict=True)) < 0.999


VLLM_METRICS = """
num_requests_running gauge
num_requests_waiting gauge
kv_cache_usage_perc gauge
prompt_tokens_total counter
generation_tokens_total counter
prefix_cache_queries_total counter
prefix_cache_hits_total counter
num_preemptions_total counter
request_success_total counter
time_to_first_token_seconds histogram
inter_token_latency_seconds histogram
e2e_request_latency_seconds histogram
"""


def test_metrics_have_vllm_names(pico: Server) -> None:
    page = httpx.get(f"{pico.url}/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    for line in VLLM_METRICS.split("\n"):
        assert not line or f"# TYPE tinyllm:{line}\n" in page.text


def test_a_generation_is_counted(pico: Server) -> None:
    names = (
        'request_success_total{finished_reason="length"}',
        "e2e_request_latency_seconds_count",
        "time_to_first_token_seconds_count",
        "generation_tokens_total",
        "inter_token_latency_seconds_count",
        "prefix_cache_queries_total",
    )
    body = {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True, "n": 2}
    httpx.post(f"{pico.url}/v1/completions", json=body | {"n": 1})  # makes the labelled counter
    before = [pico.metric(name) for name in names]
    httpx.post(f"{pico.url}/v1/completions", json=body)
    counted = [pico.metric(name) - old for name, old in zip(names, before, strict=True)]
    assert counted == [2, 2, 2, 8, 6, 6]


@pytest.mark.parametrize("enabled", [True, False])
def test_lookups_are_counted_only_with_a_prefix_cache(enabled: bool) -> None:
    numbers = {field.name: number for number, field in enumerate(fields(EngineStats), 1)}
    stats = EngineStats(**numbers)
    prompts, cached = float(stats.prompt_tokens), float(stats.cached_tokens)
    text = Metrics(lambda: stats, enable_prefix_caching=enabled).text().decode()
    assert f"prefix_cache_queries_total {prompts if enabled else 0.0}\n" in text
    assert f"prefix_cache_hits_total {cached if enabled else 0.0}\n" in text
    assert f"prompt_tokens_total {prompts}\n" in text


def test_the_api_page_needs_no_network(pico: Server) -> None:
    page = httpx.get(f"{pico.url}/docs").text
    needed = re.findall(r"""(?:src|href)=["']([^"']+)""", page)
    assert len(needed) > 2
    for path in needed:  # a URL of another server would give no valid address here
        assert httpx.get(pico.url + path).status_code == 200


BODY_LIMIT = 50_000  # bytes, of `guarded`
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def test_the_server_conforms_to_its_openapi_document(guarded: Server) -> None:
    document = schemathesis.openapi.from_url(f"{guarded.url}/openapi.json")
    key = {"Authorization": "Bearer first"}

    def holds(case: schemathesis.Case[Any]) -> None:
        if isinstance(case.body, dict):
            for name in LENGTHS:
                if isinstance(case.body.get(name), int) and case.body[name] > 8:
                    case.body[name] = 8
        # A schema cannot express the ids of a vocabulary, the longest prompt or the longest body.
        # A body that is too long is refused before its other errors are found.
        excluded: list[CheckFunction] = [positive_data_acceptance]
        answer = case.call(headers=key)
        if answer.status_code == 413:
            sent = answer.request.body
            assert isinstance(sent, bytes | str)
            assert len(sent) > BODY_LIMIT
            excluded.append(negative_data_rejection)
        case.validate_response(answer, excluded_checks=excluded)

    operations = [result.ok() for result in document.get_all_operations()]
    assert len(operations) >= 11
    few = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
    for operation, mode in product(operations, GenerationMode):
        if mode is GenerationMode.POSITIVE or operation.body:
            cases: SearchStrategy[schemathesis.Case[Any]]
            cases = operation.as_strategy(generation_mode=mode)
            few(given(cases)(holds))()


def test_the_api_page_can_authorize(pico: Server, guarded: Server) -> None:
    document = httpx.get(f"{guarded.url}/openapi.json").json()
    (scheme,) = document["components"]["securitySchemes"].values()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    without = {
        path for path, methods in document["paths"].items() if "security" not in str(methods)
    }
    assert without == {"/health", "/ready"}
    assert "securitySchemes" not in httpx.get(f"{pico.url}/openapi.json").json()["components"]
