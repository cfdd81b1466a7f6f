"""Names of the model, and paths that no endpoint has."""

from collections.abc import Callable

import httpx
import pytest
from tinyllm_serve.testing import Server

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "#think"}], "max_tokens": 8}


def test_the_model_may_be_named_as_it_was_given(scripted: Server) -> None:
    (model,) = httpx.get(f"{scripted.url}/v1/models").json()["data"]
    assert model["root"].endswith("/scripted")
    assert model["id"] == "scripted"
    for name in (model["root"], model["id"]):
        answer = httpx.post(scripted.url + CHAT, json=BODY | {"model": name})
        assert (answer.status_code, answer.json()["model"]) == (200, "scripted")
    assert httpx.get(f"{scripted.url}/v1/models/{model['root']}").json() == model
    other = httpx.post(scripted.url + CHAT, json=BODY | {"model": "other/scripted"})
    assert other.status_code == 404


def test_a_model_may_have_several_names_and_a_shorter_context(
    start: Callable[..., Server],
) -> None:
    names = ("--served-model-name", "a", "--served-model-name", "b/c")
    server = start(*names, "--max-model-len", "64")
    models = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert [(each["id"], each["max_model_len"]) for each in models] == [("a", 64), ("b/c", 64)]
    assert httpx.get(f"{server.url}/v1/models/b/c").json() == models[1]
    body = {"prompt": [5] * 32, "ignore_eos": True}
    for fields in ({"model": "a", "max_tokens": 100}, {"model": "b/c"}, {"model": "pico"}):
        answer = httpx.post(
            f"{server.url}/v1/completions", json={"max_tokens": 90, **body, **fields}
        )
        assert answer.json()["model"] == "a"
        assert answer.json()["usage"]["total_tokens"] == 64
    error = httpx.post(f"{server.url}/v1/completions", json=body | {"model": "c"}).json()["error"]
    assert error["message"] == "model: expected 'a' or 'b/c', the served model, got 'c'"
    for prompt in ([5] * 64, "word " * 80):
        answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": prompt})
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert error["message"].startswith("prompt: expected at most 63 tokens, ")
        assert error["message"].endswith("maximum context length is 64 tokens")


def test_the_operator_sets_defaults_of_requests(
    scripted: Server, start: Callable[..., Server]
) -> None:
    (model,) = httpx.get(f"{scripted.url}/v1/models").json()["data"]
    generation = ("--override-generation-config", '{"temperature": 0.25}')
    template = ("--default-chat-template-kwargs", '{"enable_thinking": false}')
    server = start("--model", model["root"], "--allow-special-tokens", *generation, *template)

    def tokens(server: Server, **fields: object) -> int:
        body = {**BODY, **fields}
        usage = httpx.post(server.url + CHAT, json=body).json()["usage"]
        counted = {name: body[name] for name in body.keys() & {"messages", "chat_template_kwargs"}}
        count = httpx.post(f"{server.url}/tokenize", json=counted).json()["count"]
        assert count == usage["prompt_tokens"] or "reasoning_effort" in fields
        return int(usage["prompt_tokens"])

    off, on = ({"enable_thinking": value} for value in (False, True))
    assert tokens(server) == tokens(scripted, chat_template_kwargs=off) > tokens(scripted)
    for fields in ({"chat_template_kwargs": on}, {"reasoning_effort": "low"}):
        assert tokens(server, **fields) == tokens(scripted)

    def temperature(server: Server, **fields: object) -> object:
        body = {"input": "#think", **fields}
        return httpx.post(f"{server.url}/v1/responses", json=body).json()["temperature"]

    assert (temperature(scripted), temperature(server)) == (0.0, 0.25)
    assert temperature(server, temperature=0.5) == 0.5
    warned = ["--override-generation-config" in str(each.log()) for each in (scripted, server)]
    assert warned == [True, False]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/chat/completions", "append /v1 to the base URL"),
        ("/v1/v1/chat/completions", "write /v1 once"),
        ("/v1//chat/completions", "without a slash"),
        ("/v1/audio", "no endpoint has the path '/v1/audio'"),
        ("/v1/chat/completions/", f"expected the path {CHAT}, got {CHAT}/: leave out the slash"),
        ("/tokenize/", "expected the path /tokenize, got /tokenize/: leave out the slash"),
        ("/api/chat", "Ollama's API: use /v1 with a client of OpenAI's API"),
    ],
)
def test_a_wrong_base_url_is_named(scripted: Server, path: str, message: str) -> None:
    answer = httpx.post(scripted.url + path, json=BODY)
    assert answer.status_code == 404
    assert message in answer.json()["error"]["message"]


def test_the_list_of_models_has_no_slash_at_its_end(scripted: Server) -> None:
    answer = httpx.get(f"{scripted.url}/v1/models/")
    assert answer.status_code == 404
    message = "expected the path /v1/models, got /v1/models/: leave out the slash at its end"
    assert answer.json()["error"]["message"] == message
