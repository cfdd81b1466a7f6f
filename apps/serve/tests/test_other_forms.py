"""Requests in the form of another endpoint get an error that names the field and the right form."""

from typing import Any

import httpx
import pytest
from tinyllm_serve.testing import Server

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ASK = {"role": "user", "content": "#think"}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [ASK]},
    RESPONSES: {"input": "#think"},
    MESSAGES: {"messages": [ASK], "model": "scripted", "max_tokens": 4},
}
NESTED = {"type": "function", "function": {"name": "f", "parameters": {}}}
FLAT = {"type": "function", "name": "f", "parameters": {}}
FORMAT = {"name": "a", "schema": {}}
NESTED_FORMAT = {"type": "json_schema", "json_schema": FORMAT}
FLAT_FORMAT = {"type": "json_schema", **FORMAT}


@pytest.mark.parametrize(
    ("path", "fields", "param", "remedy"),
    [
        (RESPONSES, {"tools": [NESTED]}, "tools.0.function", "name and parameters beside type"),
        (
            RESPONSES,
            {"text": {"format": NESTED_FORMAT}},
            "text.format.json_schema",
            "name and schema beside type",
        ),
        (
            RESPONSES,
            {"tools": [FLAT], "tool_choice": NESTED},
            "tool_choice",
            '{"type": "function", "name": "f"}',
        ),
        (CHAT, {"tools": [FLAT]}, "tools.0.name", "in function, beside type"),
        (CHAT, {"tools": [{"name": "f", "input_schema": {}}]}, "tools.0.name", "in function"),
        (CHAT, {"response_format": FLAT_FORMAT}, "response_format.name", "in json_schema"),
        (
            CHAT,
            {"response_format": {"type": "json_object", "schema": {}}},
            "response_format.schema",
            "use the type json_schema",
        ),
        # The name of a branch of a union is also a field.
        (
            CHAT,
            {"messages": [{"role": "user", "user": {}, "content": 5}]},
            "messages.0.content",
            "",
        ),
        (CHAT, {"messages": [{**ASK, "user": {}}]}, "messages.0.user", "does not know"),
        (CHAT, {"messages": [{"role": "user", "user": {}}]}, "messages.0.content", "required"),
        (CHAT, {"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name", ""),
        (CHAT, {"tools": [{"type": "function", "function": 5}]}, "tools.0.function", ""),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.name",
            "",
        ),
    ],
)
def test_the_field_and_the_right_form_are_named(
    scripted: Server, path: str, fields: dict[str, Any], param: str, remedy: str
) -> None:
    answer = httpx.post(scripted.url + path, json=BODIES[path] | fields)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")
    assert remedy in error["message"]


@pytest.mark.parametrize("text", [5, {"a": 1}])
def test_a_field_of_a_block_is_named(scripted: Server, text: object) -> None:
    turn = {"role": "user", "content": [{"type": "text", "text": text}]}
    answer = httpx.post(scripted.url + MESSAGES, json=BODIES[MESSAGES] | {"messages": [turn]})
    assert answer.json()["error"]["message"].startswith("messages.0.content.0.text: ")
