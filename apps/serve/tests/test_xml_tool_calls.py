"""The parser and the grammar of calls in Qwen3.5's XML format."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tinyllm_engine.grammar.compiler import GrammarCompiler
from tinyllm_qwen import Tokenizer, load
from tinyllm_serve.generation.grammar import call_grammar, text_or_calls
from tinyllm_serve.generation.parameter_types import FunctionSchemas, Schema, Steps, parameter_types
from tinyllm_serve.generation.parts import CallArguments, CallEnd, CallStart, Content, Part
from tinyllm_serve.generation.tool_calls import MAX_HEAD
from tinyllm_serve.generation.xml_tool_calls import XmlToolCallParser
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.protocol.tools import Function

SCHEMA: Schema = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "units": {"enum": ["C", "F"]},
        "wind": {"type": "boolean"},
        "place": {"$ref": "#/$defs/Place"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "hours": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["city"],
    "$defs": {"Place": {"type": "object"}},
}
FUNCTIONS = {"weather": SCHEMA, "free": {}}


def call(name: str, **values: str) -> str:
    """Return a call as the model writes it."""
    parameters = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items()
    )
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def parse(pieces: list[str]) -> list[Part]:
    """Return all parts, with adjacent content and adjacent arguments joined."""
    parser = XmlToolCallParser(FunctionSchemas(FUNCTIONS))
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    together: list[Part] = []
    for part in parts:
        last = together[-1] if together else None
        if isinstance(part, Content) and isinstance(last, Content):
            together[-1] = Content(last.text + part.text)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments):
            together[-1] = CallArguments(last.text + part.text)
        else:
            together.append(part)
    return together


def arguments_of(text: str) -> list[object]:
    """Return the decoded arguments of all calls."""
    return [json.loads(part.text) for part in parse([text]) if isinstance(part, CallArguments)]


@pytest.mark.parametrize(
    ("name", "written", "expected"),
    [
        ("city", "Bern", "Bern"),
        ("city", "12", "12"),
        ("city", 'a "b" \\ ü🙂\n\n<b>\n', 'a "b" \\ ü🙂\n\n<b>\n'),
        ("city", "", ""),
        ("days", "3", 3),
        ("days", " 3 ", 3),
        ("days", "three", "three"),
        ("days", "3.5", "3.5"),
        ("days", "NaN", "NaN"),
        ("units", "C", "C"),
        ("wind", "True", True),
        ("wind", "false", False),
        ("place", '{"lat": [1, 2]}', {"lat": [1, 2]}),
        ("place", '{"lat": [1, 2', '{"lat": [1, 2'),
        ("note", "null", None),
        ("note", "0", "0"),
        ("note", "NaN", "NaN"),
        ("hours", "[1, 2]", [1, 2]),
        ("hours", '["</parameter>", "\\\\\\"</parameter>"]', ["</parameter>", '\\"</parameter>']),
        ("hours", '["', '["'),
        ("unknown", "[1]", "[1]"),
    ],
)
def test_a_value_has_the_type_of_the_schema(name: str, written: str, expected: object) -> None:
    assert arguments_of(call("weather", **{name: written})) == [{name: expected}]


def test_calls_and_text_are_separated() -> None:
    text = f"Let me see.\n\n{call('weather', city='Bern', days='2')}\n{call('free')}\nDone"
    assert parse([text]) == [
        Content("Let me see."),
        CallStart("weather"),
        CallArguments('{"city": "Bern", "days": 2}'),
        CallEnd(),
        CallStart("free"),
        CallArguments("{}"),
        CallEnd(),
        Content("Done"),
    ]


def test_text_is_returned_as_it_is_written() -> None:
    parser = XmlToolCallParser(FunctionSchemas(FUNCTIONS))
    assert parser.push("<tool_call>\n<function=wea") == []
    assert parser.push("ther>\n<parameter=") == [CallStart("weather"), CallArguments("{")]
    assert parser.push("city>\nBe") == [CallArguments('"city": "'), CallArguments("Be")]
    assert parser.push("rn\n</para") == [CallArguments("rn")]
    assert parser.push("graph>") == [CallArguments("\\n</paragraph>")]
    assert parser.push("\n</parameter>\n<parameter=days>\n1") == [CallArguments('"')]
    assert parser.push("2\n</parameter>") == [CallArguments(', "days": 12')]
    assert parser.push("\n</function>") == [CallArguments("}"), CallEnd()]
    assert parser.push("\n</tool_call>") == []


PIECES = [
    call("weather", city="Bern"),
    call("weather", days="1", place="{}"),
    call("other", x="1"),
    "<tool_call>",
    "</tool_call>",
    "<function=weather>",
    "</function>",
    "<parameter=city>",
    "<parameter=days>",
    "</parameter>",
    "\n",
    "7",
    "text<",
    "<par",
]


@settings(deadline=None)
@given(
    text=st.lists(st.sampled_from(PIECES), max_size=10).map("".join),
    places=st.lists(st.integers(0, 10**6)),
)
def test_the_result_does_not_depend_on_the_pieces(text: str, places: list[int]) -> None:
    whole = parse([text])
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    assert parse([text[a:b] for a, b in zip([0, *ends], ends, strict=False)]) == whole
    assert parse(list(text)) == whole
    for place, part in enumerate(whole):
        if isinstance(part, CallEnd):  # complete calls have valid arguments
            arguments = whole[place - 1]
            assert isinstance(arguments, CallArguments)
            json.loads(arguments.text)


@pytest.mark.parametrize(
    "body",
    [
        "",
        '{"name": "weather", "arguments": {}}',
        "<function=other>\n</function>",
        "<function>",
        "function=weather>",
        f"<function={'x' * MAX_HEAD}>",
        " " * MAX_HEAD + "<function=weather>",
    ],
)
def test_an_invalid_call_is_text(body: str) -> None:
    text = f"see <tool_call>{body}</tool_call> "
    assert parse([text]) == [Content(text)]


def test_the_head_of_a_call_has_a_limited_length() -> None:
    head = "<function=free>".rjust(MAX_HEAD)
    for pieces in ([head], [head[:-1], ">"]):
        parser = XmlToolCallParser(FunctionSchemas(FUNCTIONS))
        assert parser.push("<tool_call>") == []
        parts = [part for piece in pieces for part in parser.push(piece)]
        assert parts == [CallStart("free"), CallArguments("{")]
    for text in (f" {head}", f"{head[:-1]}x"):  # one character more, and a name without its end
        parser = XmlToolCallParser(FunctionSchemas(FUNCTIONS))
        assert parser.push(f"<tool_call>{text}") == [Content("<tool_call>"), Content(text)]


def test_the_tag_of_a_parameter_has_a_limited_length() -> None:
    longest = "x" * (MAX_HEAD - len("<parameter=>"))
    for name, expected in ((longest, {longest: "1"}), (f"{longest}x", {})):
        before, after = call("free", **{name: "1"}).split(name)
        for pieces in ([before + name + after], [before + name, after]):
            assert parse(pieces)[1] == CallArguments(json.dumps(expected))


def test_text_that_cannot_become_a_call_is_returned_at_once() -> None:
    parser = XmlToolCallParser(FunctionSchemas(FUNCTIONS))
    assert parser.push("<tool_call>no") == [Content("<tool_call>"), Content("no")]


def test_a_call_that_has_begun_stays_a_call() -> None:
    parts = parse(
        ["<tool_call><function=weather>oops<parameter=days>\n1\n</parameter></tool_call>"]
    )
    assert parts == [CallStart("weather"), CallArguments('{"days": 1}'), CallEnd()]
    unfinished = parse(["<tool_call><function=weather><parameter=city>\nBern"])
    assert unfinished == [CallStart("weather"), CallArguments('{"city": "Bern')]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load("pico")[1]


def function(**properties: object) -> Function:
    """Return a strict function with required parameters."""
    return Function(
        name="weather",
        strict=True,
        parameters={
            "type": "object",
            "properties": properties,
            "required": list(properties),
        },
    )


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (call("weather", city="Bern", days="2"), True),
        (call("weather", city='say "</b>\n"', days="-2"), True),
        (call("weather", city="Bern", days="two"), False),
        (call("weather", city="Bern"), False),
        (call("weather", days="2", city="Bern"), False),
        (call("other", city="Bern", days="2"), False),
    ],
)
def test_the_grammar_allows_calls_that_conform(
    tokenizer: Tokenizer, text: str, allowed: bool
) -> None:
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    weather = function(city={"type": "string"}, days={"type": "integer"})
    tokens = tokenizer.encode(text)
    for grammar in (
        call_grammar([weather], several=False, call_format="xml"),
        text_or_calls([weather], "xml"),
    ):
        matched = compiler.compile(grammar).constraint().num_allowed(tokens)
        assert (matched == len(tokens)) is allowed


CITY = {"type": "string", "enum": ["Rome", "Bern"]}
"""A schema behind the references of the tests below."""


def with_city(**schema: object) -> dict[str, object]:
    return {"$defs": {"City": CITY, "Named": {"properties": {"city": CITY}}}, **schema}


@pytest.mark.parametrize(
    ("schema", "texts", "refused"),
    [
        ({"properties": {"city": {"$ref": "#/$defs/City"}}}, ["Rome"], "Oslo"),
        ({"properties": {"city": {"allOf": [{"$ref": "#/$defs/City"}]}}}, ["Bern"], "Oslo"),
        ({"properties": {"city": {"anyOf": [CITY, {"type": "null"}]}}}, ["Rome", "null"], "Oslo"),
        ({"properties": {"city": {"enum": ["Rome", None, 5]}}}, ["Rome", "null", "5"], "6"),
        ({"properties": {"city": {"enum": [4, 5], "minimum": 5}}}, ["5"], "4"),
        ({"properties": {"city": {"type": "string", "enum": ["Rome", 5]}}}, ["Rome"], "5"),
        ({"properties": {"city": {"type": ["string", "number"], "enum": ["a", 5]}}}, ["5"], "6"),
        ({"properties": {"city": {"const": "Bern", "enum": ["Rome", "Bern"]}}}, ["Bern"], "Rome"),
        ({"properties": {"city": {**CITY, "anyOf": [{}, {"type": "null"}]}}}, ["Rome"], "null"),
        (
            {"properties": {"city": {"anyOf": [CITY, {"enum": [4, 5], "minimum": 5}]}}},
            ["Rome", "5"],
            "4",
        ),
        ({"properties": {"city": {"oneOf": [CITY, {"type": "integer"}]}}}, ["Bern", "7"], "7.5"),
        ({"properties": {"city": {"type": ["string", "null"]}}}, ["Oslo", "null", "5"], None),
        ({"$ref": "#/$defs/Named"}, ["Rome"], "Oslo"),
        ({"allOf": [{"$ref": "#/$defs/Named"}]}, ["Rome"], "Oslo"),
        ({"additionalProperties": {"type": "integer"}}, ["7"], "Oslo"),
    ],
)
def test_references_and_alternatives_are_enforced(
    tokenizer: Tokenizer, schema: dict[str, object], texts: list[str], refused: str | None
) -> None:
    parameters = with_city(**schema)
    weather = Function(name="weather", strict=True, parameters=parameters)
    grammar = call_grammar([weather], several=False, call_format="xml")
    compiled = GrammarCompiler(tokenizer, tokenizer.vocab_size).compile(grammar)

    def allows(text: str) -> bool:
        tokens = tokenizer.encode(call("weather", city=text))
        return compiled.constraint().num_allowed(tokens) == len(tokens)

    assert all(map(allows, texts))
    assert refused is None or not allows(refused)
    for text in texts:  # as the client gets it
        parts = XmlToolCallParser(FunctionSchemas({"weather": parameters})).push(
            call("weather", city=text)
        )
        arguments = "".join(part.text for part in parts if isinstance(part, CallArguments))
        Draft202012Validator(parameters).validate(json.loads(arguments))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"anyOf": [{"properties": {}}, {"required": []}]}, "anyOf: expected parameters in"),
        ({"minProperties": 1}, "minProperties: expected parameters in properties"),
        ({"properties": {}, "required": ["zip"]}, "required: expected names of properties"),
        ({"properties": {"a>b": {}}}, "'a>b': expected a name without '>'"),
        ({"properties": {"city": {"$ref": "#/$defs/Town"}}}, r"city: \$ref: expected a string"),
        ({"properties": {"city": {"anyOf": [{"pattern": "a"}, {}]}}}, "city: pattern: expected"),
        ({"properties": {"city": {**CITY, "pattern": "^R"}}}, "city: pattern: expected a string"),
        ({"properties": {"city": {"const": "a", "minLength": 2}}}, "city: minLength: expected a"),
        ({"properties": {"city": {"enum": []}}}, "city: expected a schema that allows a value"),
        ({"properties": {"city": {**CITY, "const": "Oslo"}}}, "allows a value, got none"),
        (
            {"properties": {"city": {"type": ["string", "null"], "enum": [4]}}},
            "allows a value, got none",
        ),
    ],
)
def test_what_the_grammar_cannot_enforce_is_refused(
    schema: dict[str, object], message: str
) -> None:
    weather = Function(name="weather", strict=True, parameters=with_city(**schema))
    with pytest.raises(ApiError, match=message) as refused:
        call_grammar([weather], several=False, call_format="xml")
    assert str(refused.value).endswith("or make the tool not strict with tool_choice auto")


def test_long_grammars_are_refused() -> None:
    """Each of the parameters has each of the alternatives, or all of the shared schemas."""
    many = {"anyOf": [{"enum": [f"v{i}"]} for i in range(400)]}
    each: dict[str, object] = {f"p{i}": {"$ref": "#/$defs/A"} for i in range(400)}
    numbers: dict[str, object] = {f"p{i}": {"type": "integer"} for i in range(1000)}
    for properties, shared in ((each, many), (numbers, {"description": "x" * 9000})):
        schema = {"$defs": {"A": shared}, "properties": properties}
        weather = Function(name="weather", strict=True, parameters=schema)
        with pytest.raises(ApiError, match="tools: expected "):
            call_grammar([weather], several=False, call_format="xml")
    assert parameter_types({"$defs": {"A": many}, "properties": each}, "p1", Steps()).types == {
        "string"
    }


def test_references_that_branch_or_return_take_little_time() -> None:
    """Followed each time, 40 references to the next of nine schemas would be 40^8 references."""
    steps = {f"A{i}": {"anyOf": [{"$ref": f"#/$defs/A{i + 1}"}] * 40} for i in range(8)}
    steps["A8"] = {"anyOf": [{"$ref": "#/$defs/A0"}, {"type": "string"}]}
    schema = {"$defs": steps, "properties": {"city": {"$ref": "#/$defs/A0"}}}
    weather = Function(name="weather", strict=True, parameters=schema)
    assert parameter_types(schema, "city", Steps()).types == {"string"}
    assert call_grammar([weather], several=False, call_format="xml").text


def test_keywords_that_need_quotes_are_refused() -> None:
    short = function(city={"type": "string", "maxLength": 3})
    with pytest.raises(ApiError, match=r"weather\.city: maxLength: expected a string with type"):
        call_grammar([short], several=False, call_format="xml")
