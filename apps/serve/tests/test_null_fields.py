"""A field that is null means the same as a field that is left out."""

from typing import Any

import httpx
import pytest
from tinyllm_serve.testing import Server

CHAT, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/responses", "/v1/embeddings"
ASK = {"role": "user", "content": "#think"}
CALL = {"id": "c", "type": None, "function": {"name": "f", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "#think"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"ignore_eos": None}),
        (CHAT, {"priority": None}),
        (CHAT, {"chat_template_kwargs": None}),
        (CHAT, {"stream": True, "stream_options": {"include_usage": None}}),
        (CHAT, {"messages": [ASK, {"role": "assistant", "tool_calls": [CALL]}, RESULT]}),
        (CHAT, {"unknown": None}),
        (EMBEDDINGS, {"input": "a", "encoding_format": None}),
        (RESPONSES, {"input": "a", "priority": None}),
        (RESPONSES, {"input": [{"type": "reasoning", "summary": None}, ASK]}),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": None}),
        ("/tokenize", {"messages": [ASK], "chat_template_kwargs": None, "prompt": None}),
    ],
)
def test_a_field_that_is_null_is_left_out(
    scripted: Server, path: str, body: dict[str, Any]
) -> None:
    if path == CHAT:
        body = {"messages": [ASK], "max_tokens": 2, **body}
    answer = httpx.post(scripted.url + path, json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        (RESPONSES, {"input": None}, "input"),
        (EMBEDDINGS, {"input": None}, "input"),
        ("/tokenize", {"prompt": None}, "prompt"),
    ],
)
def test_a_required_field_that_is_null_is_missing(
    scripted: Server, path: str, body: dict[str, Any], param: str
) -> None:
    answer = httpx.post(scripted.url + path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["code"] == "missing_parameter"
