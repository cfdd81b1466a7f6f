"""Schemas of calls in Qwen3.5's XML format: their cost, and the values that they allow."""

import json

import pytest
from jsonschema import Draft202012Validator
from tinyllm_engine import Grammar
from tinyllm_engine.grammar.compiler import GrammarCompiler
from tinyllm_qwen import Tokenizer, load
from tinyllm_serve.generation.grammar import call_grammar
from tinyllm_serve.generation.parameter_types import FunctionSchemas, Steps
from tinyllm_serve.generation.parts import CallArguments
from tinyllm_serve.generation.xml_tool_calls import XmlToolCallParser
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.protocol.tools import Function

Schema = dict[str, object]


def rules(schema: Schema) -> Grammar:
    """Return the grammar of calls of a strict function."""
    function = Function(name="f", strict=True, parameters=schema)
    return call_grammar([function], several=False, call_format="xml")


def call(name: str, value: str) -> str:
    """Return a call with one parameter as the model writes it."""
    parameter = f"<parameter={name}>\n{value}\n</parameter>"
    return f"<tool_call>\n<function=f>\n{parameter}\n</function>\n</tool_call>"


def arguments(schema: Schema, *written: tuple[str, str]) -> list[object]:
    """Return the arguments of calls with one parameter each, of one answer."""
    parser = XmlToolCallParser(FunctionSchemas({"f": schema}))
    found: list[object] = []
    for name, value in written:
        parts = parser.push(call(name, value))
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
    with pytest.raises(ApiError, match="tools: expected at most 65,536 references, alternatives"):
        rules({"properties": {"p": schema}, "$defs": shared})


def test_alternatives_that_are_no_schemas_count() -> None:
    properties = {f"p{i}": {"$ref": "#/$defs/A"} for i in range(30)}
    shared = {"A": {"anyOf": [{"type": "string"}, *[1] * 10_000]}}
    with pytest.raises(ApiError, match="tools: expected at most 65,536 references, alternatives"):
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


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load("pico")[1]


SHARED = {
    "City": {"type": "string", "enum": ["Rome", "Bern"]},
    "Days": {"type": "integer", "minimum": 3},
    "Named": {"properties": {"p": {"type": "string"}}},
}


def check(tokenizer: Tokenizer, schema: Schema, texts: list[str], refused: list[str]) -> None:
    """Check which texts of a parameter the grammar allows, and that their values conform."""
    parameters = {"$defs": SHARED, "properties": {"p": schema}}
    compiled = GrammarCompiler(tokenizer, tokenizer.vocab_size).compile(rules(parameters))

    def allows(text: str) -> bool:
        tokens = tokenizer.encode(call("p", text))
        return compiled.constraint().num_allowed(tokens) == len(tokens)

    assert [text for text in [*texts, *refused] if allows(text)] == texts
    for text in texts:
        (value,) = arguments(parameters, ("p", text))
        Draft202012Validator(parameters).validate({"p": value})


def test_the_answers_of_a_request_find_the_types_of_a_parameter_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schemas = FunctionSchemas({"f": {"properties": {"p": {"anyOf": [{"type": "integer"}] * 1000}}}})
    steps, take = list[int](), Steps.take

    def count(self: Steps, number: int = 1) -> None:
        steps.append(number)
        take(self, number)

    monkeypatch.setattr(Steps, "take", count)
    counts = []
    for _ in range(3):
        XmlToolCallParser(schemas).push(call("p", "1"))
        counts.append(sum(steps))
    assert counts == [counts[0]] * 3
    assert counts[0] > 1000


@pytest.mark.parametrize(
    ("schema", "texts", "refused"),
    [
        ({"$ref": "#/$defs/City", "enum": ["Bern", "Oslo"]}, ["Bern"], ["Rome", "Oslo"]),
        ({"$ref": "#/$defs/City", "const": "Bern"}, ["Bern"], ["Rome"]),
        ({"const": "Bern", "anyOf": [{"const": "Bern"}, {"const": "Rome"}]}, ["Bern"], ["Rome"]),
        ({"type": ["string", "null"], "anyOf": [{"type": "string"}]}, ["Rome"], []),
        ({"type": "string", "anyOf": [{"enum": ["a"]}, {"type": "null"}]}, ["a"], ["null"]),
        (
            {"type": ["string", "number"], "anyOf": [{"type": "integer"}, {"enum": ["a", None]}]},
            ["7", "a"],
            ["7.5", "null"],
        ),
        (
            {"enum": ["a", 1, True], "anyOf": [{"enum": ["a", 1]}, {"enum": ["b"]}]},
            ["a", "1"],
            ["true", "b"],
        ),
        (
            {"enum": ["a", [1], [2]], "anyOf": [{"enum": ["a", [2]]}]},
            ["a", "[2]"],
            ["[1]"],
        ),
        (
            {
                "anyOf": [
                    {"$ref": "#/$defs/City", "enum": ["Rome"]},
                    {"$ref": "#/$defs/City", "enum": ["Bern"]},
                ]
            },
            ["Rome", "Bern"],
            ["Oslo"],
        ),
        (
            {"anyOf": [{"$ref": "#/$defs/Days", "minimum": 5}, {"enum": ["a"]}]},
            ["6", "a"],
            ["4"],
        ),
        (
            {"anyOf": [{"$ref": "#/$defs/Days", "minimum": 1}, {"enum": ["a"]}]},
            ["3", "a"],
            ["2"],
        ),
    ],
)
def test_keywords_beside_others_restrict_too(
    tokenizer: Tokenizer, schema: Schema, texts: list[str], refused: list[str]
) -> None:
    check(tokenizer, schema, texts, refused)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"p": {"$ref": "#/$defs/City", "enum": ["Oslo"]}}}, "a value, got none"),
        ({"properties": {"p": {"$ref": "#/$defs/City", "type": "integer"}}}, "a value, got none"),
        (
            {"$ref": "#/$defs/Named", "properties": {"q": {"type": "string"}}},
            "allOf: expected parameters in properties",
        ),
        (
            {"properties": {"p": {"anyOf": [{}], "$ref": "#/$defs/Either"}}},
            "p: allOf: expected a string with type, enum or const",
        ),
    ],
)
def test_keywords_that_exclude_each_other_are_refused(schema: Schema, message: str) -> None:
    shared = {**SHARED, "Either": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
    with pytest.raises(ApiError, match=message):
        rules({"$defs": shared, **schema})


def test_references_with_keywords_beside_them_end() -> None:
    """Each of the references leads to itself, with other keywords beside it."""
    tree = {"anyOf": [{"$ref": "#/$defs/A", "enum": ["a", i]} for i in range(9)] + [{}]}
    assert rules({"$defs": {"A": tree}, "properties": {"p": {"$ref": "#/$defs/A"}}}).text


@pytest.mark.parametrize(
    ("schema", "texts", "refused"),
    [
        ({"enum": ["5", 6]}, ["5", "6"], ["7"]),
        ({"enum": ["5 ", "True", "[1]", 6, False, [2]]}, ["5 ", "True", "[1]", "6", "[2]"], ["5"]),
        ({"type": ["string", "null"], "enum": ["null"]}, ["null"], ["5"]),
        ({"anyOf": [{"const": "null"}, {"type": "integer"}]}, ["null", "5"], []),
        ({"anyOf": [{"type": "string"}, {"enum": [6]}]}, ["5", "6"], []),
        ({"anyOf": [{"enum": ["5"]}, {"type": "integer", "minimum": 6}]}, ["5", "6"], ["4"]),
    ],
)
def test_a_listed_text_that_parses_as_another_type_conforms(
    tokenizer: Tokenizer, schema: Schema, texts: list[str], refused: list[str]
) -> None:
    check(tokenizer, schema, texts, refused)


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"enum": ["5", 5]}, "5", 5),
        ({"enum": [1, 2]}, "5", 5),
        ({"enum": ["a", 6]}, "5", 5),
        ({"anyOf": [{"type": "string"}, {"type": "number", "enum": [5]}]}, "5.0", 5.0),
        ({"anyOf": [{"type": "string"}, {"type": "boolean"}]}, "True", True),
        ({"anyOf": [{"type": "string"}, {"enum": [[1]]}]}, "[1]", [1]),
    ],
)
def test_a_text_that_a_type_allows_has_that_type(
    schema: Schema, text: str, expected: object
) -> None:
    (value,) = arguments({"properties": {"p": schema}}, ("p", text))
    assert (value, type(value)) == (expected, type(expected))
