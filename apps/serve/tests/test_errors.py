"""Refused requests: errors have OpenAI's shape and name the field at fault."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from tinyllm_serve.http.host_check import HostCheck
from tinyllm_serve.settings import Settings
from tinyllm_serve.testing import Server

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}
NAMED = {"type": "function", "function": {"name": "g"}}
JSON = {"type": "json_object"}
NONSENSE = {"name": "x", "schema": {"type": "nonsense"}}
NONSENSE_FORMAT = {"type": "json_schema", "json_schema": NONSENSE}
LONG_LOGPROBS = {"prompt": ["a"] * 10, "n": 16, "logprobs": 5, "max_tokens": 2048}
FLAT_NONSENSE = {"type": "json_schema", **NONSENSE}
CALLED = {"type": "function_call_output", "call_id": "a", "output": "b"}
CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
YES = {"regex": "yes"}

exhaustive = pytest.mark.exhaustive


def error(response: httpx.Response) -> dict[str, str | None]:
    body = response.json()["error"]
    assert body.keys() == {"message", "type", "param", "code"}
    return body


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"max_toknes": 4}, "max_toknes"),
        (CHAT, {"best_of": 2}, "best_of"),
        (CHAT, {"temperature": -1}, "temperature"),
        (CHAT, {"temperature": "1"}, "temperature"),
        (CHAT, {"top_p": 0}, "top_p"),
        (CHAT, {"n": 0}, "n"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        (CHAT, {"seed": 2**64}, "seed"),
        (CHAT, {"stop": ["a", ""]}, "stop.1"),
        (CHAT, {"logit_bias": {"a": 1}}, "logit_bias"),
        (CHAT, {"logit_bias": {"1" * 4301: 1}}, "logit_bias"),
        (CHAT, {"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
        (CHAT, {"chat_template_kwargs": {"loop": 1}}, "chat_template_kwargs"),
        (CHAT, {"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
        (CHAT, {"logit_bias": {"999999": 1}}, "logit_bias"),
        (CHAT, {"response_format": {"type": "xml"}}, "response_format"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        (CHAT, {"tool_choice": "required"}, "tool_choice"),
        (CHAT, {"tool_choice": NAMED}, "tool_choice"),
        (CHAT, {"tool_choice": NAMED, "tools": [TOOL]}, "tool_choice"),
        (CHAT, {"tool_choice": "required", "tools": [TOOL], "ignore_eos": True}, "tool_choice"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"stream_options": {"include_usage": True}, "stream": False}, "stream_options"),
        (CHAT, {"structured_outputs": {}}, "structured_outputs"),
        (CHAT, {"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        (CHAT, {"structured_outputs": {"json": {"type": "nonsense"}}}, "structured_outputs.json"),
        (CHAT, {"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        (CHAT, {"structured_outputs": {"json": "[]"}}, "structured_outputs.json"),
        (CHAT, {"structured_outputs": {"json": "[" * 65}}, "structured_outputs.json"),
        (CHAT, {"structured_outputs": {"json": " " * 262_145}}, "structured_outputs.json"),
        (CHAT, {"structured_outputs": {"json_object": False}}, "structured_outputs"),
        (
            CHAT,
            {"structured_outputs": {"structural_tag": "a"}},
            "structured_outputs.structural_tag",
        ),
        (CHAT, {"structured_outputs": {"choice": [""]}}, "structured_outputs.choice.0"),
        (CHAT, {"structured_outputs": {"regex": "a("}}, "structured_outputs.regex"),
        (CHAT, {"structured_outputs": {"grammar": "start: b"}}, "structured_outputs.grammar"),
        (CHAT, {"structured_outputs": YES, "response_format": JSON}, "structured_outputs"),
        (CHAT, {"structured_outputs": YES, "ignore_eos": True}, "ignore_eos"),
        (CHAT, {"response_format": NONSENSE_FORMAT}, "response_format"),
        (CHAT, {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (CHAT, {"guided_regex": "a"}, "guided_regex"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [{"role": "judge", "content": ""}]}, "messages.0"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages.0.content"),
        (
            CHAT,
            {"messages": [*HELLO, {"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.1.content.0.type",
        ),
        (CHAT, {"messages": [{"role": "tool", "tool_call_id": "a", "content": "b"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "word " * 3000}]}, "messages"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": [5000]}, "prompt"),
        ("/v1/completions", {"prompt": [5, 2**31]}, "prompt.1"),
        ("/v1/completions", {"prompt": "a", "echo": True, "max_tokens": 0}, "max_tokens"),
        ("/v1/completions", LONG_LOGPROBS, "logprobs"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/v1/completions", {"prompt": "a", "structured_outputs": {}}, "structured_outputs"),
        ("/v1/embeddings", {"input": ["a", ""]}, "input.1"),
        ("/v1/embeddings", {"input": "a", "dimensions": 4}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "user": "b" * 257}, "user"),
        (CHAT, {"store": True}, "store"),
        (CHAT, {"service_tier": "flex"}, "service_tier"),
        (CHAT, {"verbosity": "low"}, "verbosity"),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities.1"),
        (CHAT, {"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
        (CHAT, {"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools.0.type"),
        (CHAT, {"messages": [{"role": "assistant", "refusal": "no"}]}, "messages.0.refusal"),
        ("/v1/responses", {"input": "a", "store": True}, "store"),
        ("/v1/responses", {"input": "a", "background": True}, "background"),
        ("/v1/responses", {"input": "a", "include": ["b"]}, "include.0"),
        ("/v1/responses", {"input": "a", "tools": [{"type": "web"}]}, "tools.0"),
        ("/v1/responses", {"input": "a", "text": {"format": FLAT_NONSENSE}}, "text.format"),
        ("/v1/responses", {"input": "word " * 3000}, "input"),
        ("/v1/responses", {"input": [CALLED]}, "input"),
        ("/v1/responses", {"input": [CALL | {"name": "f" * 257}]}, "input.0.name"),
        ("/v1/responses", {"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
        ("/v1/responses", {"input": "a", "tool_choice": "required"}, "tool_choice"),
        (
            "/v1/responses",
            {"input": "a", "structured_outputs": YES, "text": {"format": JSON}},
            "structured_outputs",
        ),
        ("/v1/responses", {"input": "a", "previous_response_id": "b"}, "previous_response_id"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"text": "a"}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": HELLO, "unknown": True}, "unknown"),
        ("/tokenize", {"messages": HELLO, "prompt": "x"}, None),
        ("/detokenize", {"tokens": [1, 10**6]}, "tokens"),
    ],
)
def test_an_invalid_field_is_named(
    pico: Server, path: str, body: dict[str, object], param: str | None
) -> None:
    if path == CHAT:
        body = {"messages": HELLO, **body}
    streams = path == CHAT and "stream" not in body
    for stream in ({}, {"stream": True}) if streams else ({},):
        response = httpx.post(f"{pico.url}{path}", json=body | stream)
        assert response.status_code == 400
        assert error(response)["param"] == param
        assert error(response)["type"] == "invalid_request_error"


def test_a_long_prompt_has_the_code_of_openai(pico: Server) -> None:
    long = "word " * 3000
    for path, body in (
        (CHAT, {"messages": [{"role": "user", "content": long}]}),
        ("/v1/completions", {"prompt": long}),
        ("/v1/responses", {"input": long}),
        ("/v1/completions", {"prompt": [5] * 3000}),
        ("/v1/embeddings", {"input": long}),
        ("/v1/embeddings", {"input": [[5] * 3000]}),
    ):
        response = httpx.post(f"{pico.url}{path}", json=body)
        assert response.status_code == 400
        assert error(response)["code"] == "context_length_exceeded"
        # LiteLLM, opencode and others recognize the error by these words.
        text = "this model's maximum context length is 2048 tokens"
        assert error(response)["message"].endswith(text)


def test_other_requests_are_refused(pico: Server) -> None:
    def status(method: str, path: str, **options: Any) -> int:
        response = httpx.request(method, f"{pico.url}{path}", **options)
        assert error(response)["message"]
        return response.status_code

    as_json = {"Content-Type": "application/json"}
    assert status("POST", CHAT, json={"messages": HELLO, "model": "gpt-5"}) == 404
    assert status("GET", "/v1/models/gpt-5") == 404
    assert status("GET", "/nowhere") == 404
    assert status("GET", CHAT) == 405
    assert error(httpx.get(pico.url + CHAT))["message"] == "method: expected POST, got GET"
    assert status("POST", CHAT, content="{", headers=as_json) == 400
    assert status("POST", CHAT, content="[" * 100_000, headers=as_json) == 400
    assert status("POST", CHAT, content=b"\xff", headers=as_json) == 400
    assert status("POST", CHAT, content='{"messages": NaN}', headers=as_json) == 400
    for content in ("[]", "null", ""):
        assert status("POST", CHAT, content=content, headers=as_json) == 400
    for path in (CHAT, "/tokenize"):
        listed = httpx.post(pico.url + path, content="[]", headers=as_json)
        assert "the body is no JSON object" in error(listed)["message"]
    # A web page of another origin can send this without a preflight request. It is not JSON.
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # the default of curl
    unsaid = httpx.post(pico.url + CHAT, content=json.dumps({"messages": HELLO}), headers=form)
    assert unsaid.status_code == 400
    assert "Content-Type: application/json" in error(unsaid)["message"]


def test_head_is_get_without_the_body(pico: Server) -> None:
    for path in ("/", "/health", "/ready", "/v1/models", "/v1/models/pico", "/docs", "/nowhere"):
        whole, head = httpx.get(pico.url + path), httpx.head(pico.url + path)
        assert (head.status_code, head.content) == (whole.status_code, b"")
        assert head.headers["content-length"] == whole.headers["content-length"]
        pico.wait_for("request", id=head.headers["x-request-id"], method="HEAD")
    assert httpx.head(pico.url + CHAT).status_code == 405


def test_long_bodies_are_refused(guarded: Server) -> None:
    key = {"Authorization": "Bearer first"}
    long = json.dumps({"messages": [{"role": "user", "content": "x" * 60_000}]}).encode()
    announced = httpx.post(guarded.url + CHAT, content=long, headers=key)
    assert (announced.status_code, error(announced)["param"]) == (413, None)

    def in_pieces() -> Iterator[bytes]:
        for place in range(0, len(long), 5000):
            yield long[place : place + 5000]

    as_json = {"Content-Type": "application/json", **key}
    assert httpx.post(guarded.url + CHAT, content=in_pieces(), headers=as_json).status_code == 413


def test_open_paths_take_no_body_without_a_key(guarded: Server) -> None:
    long = b"x" * 40_000
    for path in ("/health", "/docs", "/page/chat.js", "/page/x/y", "/static-offline-docs/x"):
        for method in ("POST", "PUT", "GET"):
            answer = httpx.request(method, guarded.url + path, content=long)
            assert answer.status_code == 401, (method, path)
        assert httpx.post(guarded.url + path).status_code == 401
        assert httpx.post(guarded.url + path, content=iter([long])).status_code == 401
    assert httpx.head(f"{guarded.url}/health").status_code == 200
    answer = httpx.post(f"{guarded.url}/health", headers={"Authorization": "Bearer first"})
    assert answer.status_code == 405


def test_an_api_key_is_required(guarded: Server) -> None:
    url = f"{guarded.url}/v1/models"
    for headers in ({}, {"Authorization": "Bearer third"}, {"Authorization": "Basic first"}):
        refused = httpx.get(url, headers=headers)
        assert (refused.status_code, error(refused)["code"]) == (401, "invalid_api_key")
        assert refused.headers["www-authenticate"] == "Bearer"
    assert httpx.get(url, headers={"Authorization": "Bearer second"}).status_code == 200
    assert httpx.get(f"{guarded.url}/metrics").status_code == 401
    for path in ("/", "/health", "/ready", "/docs", "/openapi.json", "/page/chat.js"):
        assert httpx.get(guarded.url + path).status_code == 200


def test_allowed_origins_get_cors_headers(pico: Server, guarded: Server) -> None:
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    assert (
        "access-control-allow-origin"
        not in httpx.options(pico.url + CHAT, headers=preflight).headers
    )
    allowed = httpx.options(guarded.url + CHAT, headers=preflight)
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    other = httpx.options(guarded.url + CHAT, headers=preflight | {"Origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers


REBOUND = ("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example")
WRONG = ("", "[", "a b", "localhost@evil.example@", "http://localhost")


@pytest.mark.parametrize("host", [*REBOUND, *WRONG])
def test_foreign_host_names_are_refused(pico: Server, host: str) -> None:
    for path in ("/", "/v1/models", "/metrics", "/health", "/docs"):
        refused = httpx.get(pico.url + path, headers={"Host": host})
        assert refused.status_code in (400, 403)  # the HTTP parser answers 400 to invalid names
        assert "model" not in refused.text


@pytest.mark.parametrize("host", ["localhost", "LocalHost.:1", "127.0.0.1:1", "127.8.9.1", "[::1]"])
def test_names_of_this_machine_are_allowed(pico: Server, host: str) -> None:
    assert httpx.get(f"{pico.url}/v1/models", headers={"Host": host}).status_code == 200


def test_host_names_are_checked_only_without_keys() -> None:
    ready = PlainTextResponse("ready")

    def status(host_name: str, **settings: Any) -> int:
        names = Settings(**settings, allow_anonymous=True).host_names
        client = TestClient(ready if names is None else HostCheck(ready, names))
        client.app_state["log_fields"] = {}  # as `RequestLog` does
        return client.get("/", headers={"Host": host_name}).status_code

    assert status("evil.example") == 403
    assert status("evil.example", api_key=["k"]) == 200
    assert status("evil.example", host="0.0.0.0") == 200
    assert status("Box.example:80", allowed_host=["box.example"]) == 200
    assert status("evil.example", allowed_host=["box.example"], host="0.0.0.0") == 403
    assert status("evil.example", allowed_host=["box.example"], api_key=["k"]) == 403
    assert status("[2001:DB8::1]:80", allowed_host=["box.example"], host="2001:db8::1") == 200
