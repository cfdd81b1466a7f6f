"""Fields of other servers: neutral values are accepted, and others refused with a remedy."""

import re
from typing import Any

import httpx
import pytest
from tinyllm_serve.protocol.base import Strict
from tinyllm_serve.protocol.chat import ChatRequest
from tinyllm_serve.protocol.completions import CompletionRequest
from tinyllm_serve.protocol.other_fields import NEUTRAL_VALUES, OTHER_NAMES
from tinyllm_serve.protocol.responses import ResponseRequest
from tinyllm_serve.testing import Server

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "#think"}], "max_tokens": 2},
    COMPLETIONS: {"prompt": "#think", "max_tokens": 2},
    RESPONSES: {"input": "#think", "max_output_tokens": 2},
    EMBEDDINGS: {"input": "a"},
}
REMEDIES = ("use ", "leave it out", "expected ", "send ", "write ", "shorten ", "has the ids")


def post(server: Server, path: str, **fields: object) -> httpx.Response:
    return httpx.post(server.url + path, json=BODIES[path] | fields)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_neutral_values_are_accepted(scripted: Server, path: str) -> None:
    for name, values in NEUTRAL_VALUES.items():
        for value in values:
            answer = post(scripted, path, **{name: value})
            assert answer.status_code == 200, (name, answer.text)


@pytest.mark.parametrize("name", sorted(OTHER_NAMES))
def test_other_values_are_refused_with_a_remedy(scripted: Server, name: str) -> None:
    for value in ("other", True if False in NEUTRAL_VALUES[name] else 0.5):
        answer = post(scripted, CHAT, **{name: value})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, name)
        assert error["code"] == "unsupported_parameter"
        assert error["message"] == f"{name}: {OTHER_NAMES[name]}"
        assert any(remedy in error["message"] for remedy in REMEDIES)


@pytest.mark.parametrize(
    ("path", "name", "value", "remedy"),
    [
        (COMPLETIONS, "max_completion_tokens", 5, "use max_tokens"),
        (COMPLETIONS, "chat_template_kwargs", {}, "/v1/chat/completions has it"),
        (COMPLETIONS, "messages", [], "use prompt"),
        (CHAT, "prompt", "a", "/v1/completions"),
        (CHAT, "max_output_tokens", 5, "use max_completion_tokens"),
        (CHAT, "add_special_tokens", True, "expected false"),
        (CHAT, "return_token_ids", 0, "/tokenize"),  # 0 is not false
        (RESPONSES, "chat_template_kwargs", {}, "/v1/chat/completions has it"),
        (RESPONSES, "n_predict", 5, "use max_output_tokens"),
        (RESPONSES, "think", True, "use reasoning.effort"),
        (RESPONSES, "guided_json", {}, "structured_outputs"),
        (EMBEDDINGS, "truncate_prompt_tokens", 5, "/tokenize counts"),
        (EMBEDDINGS, "add_special_tokens", False, "send tokens"),
        (CHAT, "max_toknes", 5, "leave it out, /docs lists the fields"),
        (EMBEDDINGS, "max_toknes", 5, "leave it out, /docs lists the fields"),
    ],
)
def test_the_remedy_is_that_of_the_endpoint(
    scripted: Server, path: str, name: str, value: object, remedy: str
) -> None:
    answer = post(scripted, path, **{name: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, name)
    assert remedy in error["message"]


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest, ResponseRequest])
def test_a_remedy_names_a_field_of_the_endpoint_or_another_endpoint(model: type[Strict]) -> None:
    fields = {info.alias or name for name, info in model.model_fields.items()}
    for name, reason in model.unsupported.items():
        if "/v1/" not in reason:
            pairs = re.findall(r"\b(?:use|or)(?: use)? ([a-z_]+)(?: of ([a-z_]+))?", reason)
            used = {outer or field for field, outer in pairs}
            assert used <= fields, (name, reason)


def test_special_tokens_are_added_to_embedded_texts_and_to_no_prompt(scripted: Server) -> None:
    assert post(scripted, EMBEDDINGS, add_special_tokens=True).status_code == 200
    assert post(scripted, COMPLETIONS, add_special_tokens=True).status_code == 200
