"""Codex CLI in its default configuration: a recorded request, with its texts shortened."""

import json
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from openai.types.responses import ToolParam
from tinyllm_serve.generation.system_messages import join_leading
from tinyllm_serve.protocol.chat import ChatRequest
from tinyllm_serve.protocol.responses import ResponseRequest
from tinyllm_serve.protocol.tools import HostedKind
from tinyllm_serve.routes.responses_input import as_chat
from tinyllm_serve.testing import Server

CODEX: dict[str, Any] = json.loads(Path(__file__).with_name("codex_request.json").read_text())
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
WEB = {"type": "web_search", "external_web_access": False}


def post(server: Server, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/responses", json=body)


def test_a_recorded_request_is_answered(strict: Server) -> None:
    answer = post(strict, CODEX)
    assert answer.status_code == 200, answer.text
    last = json.loads(answer.text.split("data: ")[-1])
    assert last["type"] == "response.completed"
    assert last["response"]["output"][1]["content"][0]["text"] == "It is so."
    names = [tool["name"] for tool in last["response"]["tools"]]
    assert names == ["exec_command", "view_image", "get_goal"]
    strict.wait_for("request", path="/v1/responses", tools_left_out=2)


def test_leading_instructions_are_one_system_message() -> None:
    chat = as_chat(ResponseRequest.model_validate(CODEX | {"instructions": "Be brief."}))
    first, second = join_leading(chat.messages)[:2]
    assert (first.role, second.role) == ("system", "user")
    texts = [part["text"] for item in CODEX["input"][:2] for part in item["content"]]
    assert first.content == f"Be brief.\n\n{texts[0]}\n\n{texts[1]}{texts[2]}"


DATA = "data:image/png;base64,AA"
SEEN = {"type": "input_image", "image_url": DATA, "detail": "high"}
SHOWN = {"type": "image_url", "image_url": {"url": DATA, "detail": "auto"}}
ASKED = {"role": "user", "content": "#think"}


def viewed(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of a call of `view_image` that returned parts."""
    call = {"type": "function_call", "call_id": "c", "name": "view_image", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": "c", "output": list(parts)}, ASKED]


def test_images_in_results_are_left_out(strict: Server) -> None:
    """`view_image` returns them, and Codex sends its result again with each turn."""
    body = {"input": viewed(SEEN, {"type": "input_text", "text": "b"}, SEEN)}
    (_, result, _) = as_chat(ResponseRequest.model_validate(body)).messages
    left_out = "[image left out: the model reads text alone]"
    assert result.content == f"{left_out}b{left_out}"
    assert post(strict, body).json()["status"] == "completed"
    strict.wait_for("request", path="/v1/responses", images_left_out=2)
    chat = {"messages": [{"role": "tool", "tool_call_id": "c", "content": [SHOWN]}, ASKED]}
    (turn, _) = ChatRequest.model_validate(chat).messages
    assert turn.template_form["content"] == left_out
    answer = httpx.post(f"{strict.url}/v1/chat/completions", json=chat)
    assert answer.json()["choices"][0]["message"]["content"] == "It is so."
    strict.wait_for("request", path="/v1/chat/completions", images_left_out=1)


def test_other_parts_of_results_are_refused(strict: Server) -> None:
    error = post(strict, {"input": viewed({"type": "input_file"})}).json()["error"]
    assert error["param"] == "input.1.output.0.type"
    assert "text alone" in error["message"]


@pytest.mark.parametrize("kind", get_args(HostedKind))
def test_tools_that_are_not_functions_are_left_out(kind: str) -> None:
    named = {"type": "function", "name": "f"}
    for choice in ({}, *({"tool_choice": each} for each in ("auto", "none", named))):
        body = {"input": "a", "tools": [{"type": kind, "name": "x"}, FUNCTION], **choice}
        chat = as_chat(ResponseRequest.model_validate(body))
        assert [tool.function.name for tool in chat.tools or []] == ["f"]


def test_a_request_of_such_tools_alone_has_no_tools(scripted: Server) -> None:
    answer = post(scripted, {"input": "#think", "tools": [WEB], "tool_choice": "auto"})
    assert answer.json()["tools"] == []


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": [FUNCTION, WEB], "tool_choice": "required"}, "tools", "got web_search: "),
        ({"tools": [WEB], "tool_choice": "required"}, "tools", "got web_search: "),
        ({"tools": [WEB], "tool_choice": {"type": "web_search"}}, "tool_choice", "a function"),
        ({"tools": [{"type": "functoin"}]}, "tools.0", "functoin"),
        ({"client_metadata": {"a": "b" * 8193}}, "client_metadata.a", "8192"),
        ({"client_metadata": {"a": 1}}, "client_metadata.a", "string"),
    ],
)
def test_tools_that_are_demanded_are_refused(
    scripted: Server, fields: dict[str, Any], param: str, message: str
) -> None:
    refused = post(scripted, {"input": "#think", **fields})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], message in error["message"]) == (param, True), error


def test_all_tools_of_the_openai_client_are_known() -> None:
    hints = (kind.__annotations__["type"] for kind in get_args(ToolParam))
    known = {*get_args(HostedKind), "function"}
    assert all(any(f"'{kind}'" in str(hint) for kind in known) for hint in hints)
