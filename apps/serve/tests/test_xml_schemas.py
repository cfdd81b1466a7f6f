"""Schemas of calls in Qwen3.5's XML format: their cost, and the values that they allow."""

import json

import pytest
from tinyllm_serve.generation.grammar import call_grammar
from tinyllm_serve.generation.parts import CallArguments
from tinyllm_serve.generation.xml_tool_calls import XmlToolCallParser
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.protocol.tools import Function

Schema = dict[str, object]


def rules(schema: Schema) -> str:
    """Return the grammar of calls of a strict function."""
    function = Function(name="f", strict=True, parameters=schema)
    return call_grammar([function], several=False, call_format="xml").text


def arguments(schema: Schema, *written: tuple[str, str]) -> list[object]:
    """Return the arguments of calls with one parameter each, of one answer."""
    parser = XmlToolCallParser({"f": schema})
    calls = (
        f"<tool_call>\n<function=f>\n<parameter={name}>\n{value}\n</parameter>\n</function>\n"
        "</tool_call>\n"
        for name, value in written
    )
    found: list[object] = []
    for call in calls:
        parts = parser.push(call)
        text = "".join(part.text for part in parts if isinstance(part, CallArguments))
        found += json.loads(text).values()
    return found


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [f"v{i}" for i in range(2000)], "anyOf": [{}] * 2000},
        {"type": ["string"] * 2000, "anyOf": [{}] * 2000},
        {"enum": ["x" * 100_000], "anyOf": [{"type": "string"}] * 1000},
        {"$ref": "#" + "/x" * 50_000, "anyOf": [{}] * 100},
        {"anyOf": [{"type": "string"}, *({"type": "integer", "minimum": i} for i in range(100))]},
    ],
    ids=["values", "types", "characters", "references", "shared"],
)
def test_schemas_that_multiply_are_refused(schema: Schema) -> None:
    """Each of the alternatives has the keywords beside them, or the shared schemas."""
    shared = {"A": {"description": "x" * 100_000}}
    with pytest.raises(ApiError, match="tools: expected at most 131,072 references, alternatives"):
        rules({"properties": {"p": schema}, "$defs": shared})


def test_alternatives_that_are_no_schemas_count() -> None:
    properties = {f"p{i}": {"$ref": "#/$defs/A"} for i in range(30)}
    shared = {"A": {"anyOf": [{"type": "string"}, *[1] * 10_000]}}
    with pytest.raises(ApiError, match="tools: expected at most 131,072 references, alternatives"):
        rules({"properties": properties, "$defs": shared})


def test_the_parameters_of_an_answer_have_one_limit() -> None:
    """The types are found in the event loop, for each name once. Values beyond it are texts."""
    shared = {"A": {"anyOf": [{"type": "integer"}] * 20_000}}
    schema: Schema = {
        "$defs": shared,
        "properties": {f"p{i}": {"$ref": "#/$defs/A"} for i in range(9)},
    }
    assert arguments(schema, *[("p0", "1")] * 10) == [1] * 10
    assert arguments(schema, *((f"p{i}", "1") for i in range(9)))[::8] == [1, "1"]
