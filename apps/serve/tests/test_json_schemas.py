"""JSON schemas that clients write: accepted, or refused by the name of their field."""

from functools import partial
from typing import Any

import httpx
import pytest
from tinyllm_engine.grammar.compiler import GrammarCompiler
from tinyllm_engine.grammar.json_schema import MAX_NAMES
from tinyllm_qwen import load
from tinyllm_serve.generation.grammar import call_grammar, text_or_calls
from tinyllm_serve.generation.prompt import CallFormat
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.protocol.tools import Function
from tinyllm_serve.testing import Server

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
TURN = {"messages": [{"role": "user", "content": "#json"}], "max_tokens": 2}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: TURN | {"reasoning_effort": "none"},
    RESPONSES: {"input": "#json", "max_output_tokens": 2, "reasoning": {"effort": "none"}},
    MESSAGES: TURN | {"model": "scripted", "thinking": {"type": "disabled"}},
}
HOSTED: dict[str, list[dict[str, str]]] = {
    CHAT: [],
    RESPONSES: [{"type": "web_search"}],
    MESSAGES: [{"type": "web_search_2025"}],
}


def parameters(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of arguments with one parameter, named a."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


GOOD = parameters({"type": "integer"})
ONE_OF = {"oneOf": [{"const": 1}, {"const": 2}]}
UNIQUE = parameters({"type": "array", "uniqueItems": True})


def tool(path: str, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a strict tool in the form of an endpoint."""
    match path:
        case "/v1/messages":
            return {"name": name, "input_schema": schema, "strict": True}
        case "/v1/responses":
            return {"type": "function", "name": name, "parameters": schema, "strict": True}
    return {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}


def post(server: Server, path: str, fields: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + path, json=BODIES[path] | fields)


@pytest.mark.parametrize(
    "schema",
    [
        ONE_OF,
        {"type": "string", "format": "path"},
        {"type": "array", "uniqueItems": False},
        {"type": "object", "propertyNames": {"type": "string"}},
        {"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": ONE_OF},
    ],
)
def test_schemas_of_pydantic_and_zod_are_accepted(scripted: Server, schema: dict[str, Any]) -> None:
    whole = parameters(schema)
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": whole}}
    bodies: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"response_format": form}),
        (CHAT, {"structured_outputs": {"json": whole}}),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": whole}}}),
        *((path, {"tools": [tool(path, "a", whole)]}) for path in BODIES),
        (CHAT, {"tools": [tool(CHAT, "a", whole)], "tool_choice": "required"}),
    ]
    for path, fields in bodies:
        answer = post(scripted, path, fields)
        assert answer.status_code == 200, (path, fields, answer.text)


@pytest.mark.parametrize(
    ("path", "param"),
    [
        (CHAT, "tools.1.function.parameters"),
        (RESPONSES, "tools.2.parameters"),
        (MESSAGES, "tools.2.input_schema"),
    ],
)
@pytest.mark.parametrize("beside_a_format", [False, True])
def test_an_error_of_a_schema_names_the_tool(
    scripted: Server, path: str, param: str, beside_a_format: bool
) -> None:
    tools = [*HOSTED[path], tool(path, "one", GOOD), tool(path, "two", UNIQUE)]
    fields: dict[str, Any] = {"tools": tools}
    formats: dict[str, dict[str, Any]] = {
        CHAT: {"response_format": {"type": "json_object"}},
        RESPONSES: {"text": {"format": {"type": "json_object"}}},
        MESSAGES: {"output_config": {"format": {"type": "json_schema", "schema": GOOD}}},
    }
    if beside_a_format:
        fields |= formats[path]
    answer = post(scripted, path, fields)
    error = answer.json()["error"]
    message = f"{param}: expected keywords of JSON schemas that can be enforced, got uniqueItems: "
    assert answer.status_code == 400
    assert error["message"] == message + "remove it, and check it in your program"
    assert path == MESSAGES or error["param"] == param


@pytest.mark.parametrize("call_format", ["json", "xml"])
def test_too_many_names_of_properties_are_an_error_of_the_tool(call_format: CallFormat) -> None:
    key = {"propertyNames": {"enum": [f"k{number}" for number in range(MAX_NAMES + 1)]}}
    function = Function(name="one", parameters=parameters(key), strict=True)
    for make in (text_or_calls, partial(call_grammar, several=False)):
        with pytest.raises(ApiError, match=r"^second: expected at most 1,024 names") as caught:
            make([Function(name="two"), function], call_format=call_format, fields=["", "second"])
        assert (caught.value.status, caught.value.param) == (400, "second")


def test_an_error_of_a_format_beside_tools_names_the_format(scripted: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": UNIQUE}}
    fields = {"tools": [tool(CHAT, "one", GOOD)], "response_format": form}
    error = post(scripted, CHAT, fields).json()["error"]
    assert error["param"] == "response_format"
    assert error["message"].startswith("response_format: expected keywords of JSON schemas")


def test_an_error_of_a_parameter_in_the_xml_format_names_the_tool() -> None:
    functions = [Function(name="one", parameters=GOOD), Function(name="two", parameters=UNIQUE)]
    grammar = call_grammar(functions, several=False, call_format="xml", fields=["first", "second"])
    tokenizer = load("pico")[1]
    with pytest.raises(ValueError, match=r"^second: expected keywords .* got uniqueItems: "):
        GrammarCompiler(tokenizer, tokenizer.vocab_size).compile(grammar)


def test_an_error_in_the_xml_format_names_the_keyword_of_the_schema() -> None:
    values = {"additionalProperties": {"type": "integer"}}
    schema: dict[str, object] = {"type": "object", "propertyNames": {"enum": ["a"]}, **values}
    function = Function(name="f", parameters=schema)
    with pytest.raises(ApiError, match="f: propertyNames: expected parameters in properties"):
        call_grammar([function], several=False, call_format="xml")


def test_options_of_llguidance_in_a_parameter_of_the_xml_format_are_kept() -> None:
    options = {"whitespace_flexible": False}
    either = {"type": "object", "x-guidance": options, "oneOf": [{"type": "object"}]}
    function = Function(name="f", parameters={"type": "object", "properties": {"a": either}})
    text = call_grammar([function], several=False, call_format="xml").text
    assert '"x-guidance": {"whitespace_flexible": false, "coerce_one_of": true}' in text


def test_options_of_llguidance_beside_parameters_are_kept() -> None:
    schema = GOOD | {"x-guidance": {"lenient": True, "key_separator": "x"}}
    text = call_grammar([Function(name="one", parameters=schema)], several=False).text
    assert '"lenient": true' in text
    assert '"key_separator": ": "' in text
