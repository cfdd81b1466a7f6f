"""JSON schemas as pydantic, pydantic-ai and zod write them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from llguidance import LLMatcher
from tinyllm_engine import Grammar, enforceable_schema
from tinyllm_engine.grammar.compiler import GrammarCompiler
from tinyllm_engine.grammar.json_schema import FORMATS, MAX_NAMES
from tinyllm_qwen import Qwen, Tokenizer

OTHER_FORMATS = (
    *("idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex"),
    *("relative-json-pointer", "uri-reference", "uri-template"),
    *("base64", "binary", "int32", "password", "path"),
)
INTEGERS = {"type": "object", "additionalProperties": {"type": "integer"}}
KINDS = {
    kind: {
        "type": "object",
        "properties": {"kind": {"const": kind}},
        "required": ["kind"],
        "additionalProperties": False,
    }
    for kind in ("a", "b")
}
BRANCHES = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": KINDS}
KEY = {
    "$defs": {
        "Key": {"enum": ["a", "b"], "title": "Key", "type": "string"},
        "Same": {"$ref": "#/$defs/Key", "description": "another name"},
        "Path": {"type": "string", "format": "path"},
        "Loop": {"$ref": "#/$defs/Loop"},
    }
}
REQUIRED = {
    "type": "object",
    "properties": {"x": {"const": 1}, "y": {"const": 2}},
    "oneOf": [{"required": ["x"]}, {"required": ["y"]}],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def allows(pico: tuple[Qwen, Tokenizer]) -> Callable[[dict[str, Any], str], bool]:
    """Return a function that tells whether a text conforms to the grammar of a schema."""
    tokenizer = pico[1]
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    end = min(tokenizer.eos_token_ids)

    def allows(schema: dict[str, Any], text: str) -> bool:
        constraint = compiler.compile(Grammar.json_schema(schema)).constraint()
        tokens = [*tokenizer.encode(text), end]
        return constraint.num_allowed(tokens) == len(tokens)

    return allows


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "array", "items": {"const": 1}, "uniqueItems": False}, "[1]", "[2]"),
        ({"type": "array", "items": {"type": "string", "format": "path"}}, '["a/b"]', "[1]"),
        ({"type": "object", "properties": {"format": {"const": "path"}}}, '{"format":"path"}', "1"),
        ({"enum": [{"format": "path"}]}, '{"format":"path"}', "{}"),
        (INTEGERS | {"propertyNames": {"type": "string"}}, '{"a":1}', '{"a":"b"}'),
        (INTEGERS | {"propertyNames": {}}, '{"a":1}', '{"a":"b"}'),
        (INTEGERS | {"propertyNames": True}, '{"a":1}', '{"a":"b"}'),
        (INTEGERS | {"propertyNames": {"enum": ["a", "b"]}}, '{"a":1,"b":2}', '{"c":1}'),
        (INTEGERS | {"propertyNames": {"enum": ["a", "b"]}}, "{}", '{"a":"b"}'),
        (INTEGERS | {"propertyNames": {"const": "a", "type": "string"}}, '{"a":1}', '{"b":1}'),
        (INTEGERS | {"propertyNames": {"pattern": "^a+$"}}, '{"aa":1}', '{"ab":1}'),
        (INTEGERS | {"propertyNames": {"$ref": "#/$defs/Key"}} | KEY, '{"b":1}', '{"c":1}'),
        (
            INTEGERS | {"propertyNames": {"$ref": "#/$defs/Same", "title": "k"}} | KEY,
            "{}",
            '{"c":1}',
        ),
        (INTEGERS | {"propertyNames": {"$ref": "#/$defs/Path"}} | KEY, '{"c":1}', '{"c":"d"}'),
        (
            INTEGERS | {"propertyNames": {"enum": ["a"]}, "properties": {"a": {}, "b": {}}},
            '{"a":"text"}',
            '{"b":1}',
        ),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, "2", "3"),
        (BRANCHES, '{"kind":"b"}', '{"kind":"c"}'),
        (REQUIRED, '{"x":1}', "{}"),
    ],
)
def test_keywords_that_restrict_nothing_or_can_be_expressed_are_accepted(
    allows: Callable[[dict[str, Any], str], bool], schema: dict[str, Any], valid: str, invalid: str
) -> None:
    copy = json.loads(json.dumps(schema))
    assert (allows(schema, valid), allows(schema, invalid)) == (True, False)
    assert schema == copy


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        (INTEGERS | {"propertyNames": {"minLength": 2}}, "propertyNames"),
        (INTEGERS | {"propertyNames": {"$ref": "#/$defs/None"}}, "propertyNames"),
        (INTEGERS | {"propertyNames": {"$ref": "#/$defs/Loop"}} | KEY, "propertyNames"),
        ({"items": {"not": {"const": 1}}}, "not"),
    ],
)
def test_other_keywords_are_refused_with_a_remedy(
    allows: Callable[[dict[str, Any], str], bool], schema: dict[str, Any], keyword: str
) -> None:
    remedy = f"got {keyword}: remove it, and check it in your program"
    with pytest.raises(ValueError, match=f"^grammar: expected keywords .*, {remedy}$"):
        allows(schema, "[]")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^(?=a)b$"},  # of zod's emoji
        {"type": "object", "properties": {"a": {}}, "maxProperties": 1},
        {"patternProperties": {"^a": {}}, "propertyNames": {"pattern": "^[a-z]+$"}},
    ],
    ids=["pattern", "maxProperties", "propertyNames"],
)
def test_a_valid_schema_that_cannot_be_enforced_is_not_called_invalid(
    allows: Callable[[dict[str, Any], str], bool], schema: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"^grammar: expected a json_schema that can be enforced"):
        allows(schema, "[]")


@pytest.mark.parametrize(
    "grammar", [Grammar.regex("(is not supported"), Grammar.lark('start: "is not supported" foo')]
)
def test_a_grammar_is_not_taken_for_the_reason_against_it(
    pico: tuple[Qwen, Tokenizer], grammar: Grammar
) -> None:
    tokenizer = pico[1]
    with pytest.raises(ValueError, match=r"^grammar: not a valid (regex|lark): "):
        GrammarCompiler(tokenizer, tokenizer.vocab_size).compile(grammar)


def test_names_in_property_names_are_limited() -> None:
    key = {"Key": {"enum": [f"k{number}" for number in range(MAX_NAMES // 2)]}}
    maps = {f"p{number}": {"propertyNames": {"$ref": "#/$defs/Key"}} for number in range(3)}
    two = dict([*maps.items()][:2])
    assert enforceable_schema({"$defs": key, "properties": two})
    with pytest.raises(ValueError, match="at most 1,024 names"):
        enforceable_schema({"$defs": key, "properties": maps})


def test_llguidance_enforces_these_formats_alone() -> None:
    """A newer llguidance may enforce more: then `FORMATS` and docs/serve.md should have them."""

    def error(name: str) -> str:
        schema = {"type": "string", "format": name}
        return LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))

    assert [name for name in (*FORMATS, *OTHER_FORMATS) if not error(name)] == [*FORMATS]
