"""Parsers of reasoning, content and function calls, for text in any pieces."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_serve.generation.parameter_types import FunctionSchemas
from tinyllm_serve.generation.parsers import AnswerParser
from tinyllm_serve.generation.parts import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Part,
    Reasoning,
)
from tinyllm_serve.generation.tool_calls import MAX_HEAD, ToolCallParser

PIECES = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {"x": [1, "</tool"]}}',
    '{"name": "f", "arguments": {}}',
    '{"name": "g", "arguments": {}}',
    '{"name": "f"}',
    '{"arguments": {"y": 1}, "name": "f"}',
    '{"name": "f", "arguments": {"z": "\\\\\\"}</tool_call>',
    "\n",
    " ",
    "text",
    "<tool",
    "<think>",
    "</think>",
    "é🙂",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def joined(parts: list[Part]) -> list[Part]:
    """Join adjacent parts of one kind."""
    together: list[Part] = []
    for part in parts:
        last = together[-1] if together else None
        if isinstance(part, Content) and isinstance(last, Content):
            together[-1] = Content(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            together[-1] = Reasoning(last.text + part.text)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments):
            together[-1] = CallArguments(last.text + part.text)
        else:
            together.append(part)
    return together


def parse(parser: AnswerParser | ToolCallParser, pieces: list[str]) -> list[Part]:
    parts = [part for piece in pieces for part in parser.push(piece)]
    return joined(parts + parser.finish())


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]


@settings(deadline=None)
@given(text=TEXTS, places=st.lists(st.integers(0, 10**6)), opened=st.booleans())
def test_the_result_does_not_depend_on_the_pieces(
    text: str, places: list[int], opened: bool
) -> None:
    whole = parse(AnswerParser(opened=opened, functions=FunctionSchemas({"f": {}})), [text])
    assert (
        parse(AnswerParser(opened=opened, functions=FunctionSchemas({"f": {}})), cut(text, places))
        == whole
    )
    assert (
        parse(AnswerParser(opened=opened, functions=FunctionSchemas({"f": {}})), list(text))
        == whole
    )


HEAD = re.compile(r'<tool_call>\s*\{\s*"name"\s*:\s*"f"\s*,\s*"arguments"\s*:\s*(?=\{)')


def calls_in(parts: list[Part]) -> list[str]:
    """Return the arguments of all calls; the arguments of an incomplete call end with "..."."""
    calls: list[str] = []
    for part in parts:
        match part:
            case CallStart():
                calls.append("...")
            case CallArguments(text):
                calls[-1] = f"{calls[-1].removesuffix('...')}{text}..."
            case CallEnd():
                calls[-1] = calls[-1].removesuffix("...")
    return calls


NAME_FIRST = st.lists(st.sampled_from([p for p in PIECES if "arg" not in p[:6]]), max_size=12)


@settings(deadline=None)
@given(text=NAME_FIRST.map("".join))
def test_calls_match_a_regular_expression(text: str) -> None:
    expected, place = [], 0
    while found := HEAD.search(text, place):
        try:
            _, place = json.JSONDecoder().raw_decode(text, found.end())
            expected.append(text[found.end() : place])
        except ValueError:  # the text ends within the arguments
            place = len(text)
            expected.append(f"{text[found.end() :]}...")
    assert calls_in(parse(ToolCallParser(["f"]), [text])) == expected


@settings(deadline=None)
@given(text=TEXTS)
def test_text_without_calls_is_unchanged(text: str) -> None:
    parts = parse(ToolCallParser(["nothing"]), [text])
    assert parts == ([Content(text)] if text else [])


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        '"f"',
        '{"name": "f"}',
        '{"name": "f", "arguments": []}',
        '{"name": ["f"], "arguments": {}}',
        '{"name": "g", "arguments": {}}',
        '{"arguments": {}, "name": "g"}',
        '{"arguments": {}, "name": ["f"]}',
        '{"name": "\\ud8',
        '{"name": "f"' + " " * MAX_HEAD + ', "arguments": {}}',
        "[" * 100_000,
        '{"arguments": ' + "[" * 100_000,
    ],
)
def test_an_invalid_call_is_text(body: str) -> None:
    text = f"see <tool_call>{body}</tool_call> "
    assert parse(ToolCallParser(["f"]), [text]) == [Content(text)]


def test_text_before_a_call_is_not_held_back() -> None:
    parser = ToolCallParser(["f"])
    assert parser.push("Let me see. <tool") == [Content("Let me see.")]
    assert parser.push('_call>{"name"') == []
    assert parser.push(': "f", "arguments": {}}</tool_call>') == [
        CallStart("f"),
        CallArguments("{}"),
        CallEnd(),
    ]
    assert parser.push("\n\n") == []
    assert parser.push("Done") == [Content("Done")]


def test_arguments_are_returned_as_they_are_written() -> None:
    parser = ToolCallParser(["f"])
    assert parser.push('<tool_call>\n{"name": "f", "arguments": ') == []
    assert parser.push('{"city') == [CallStart("f"), CallArguments('{"city')]
    assert parser.push('": "{[</tool_call>\\') == [CallArguments('": "{[</tool_call>\\')]
    assert parser.push('""}') == [CallArguments('""}'), CallEnd()]
    assert parser.push("}\n</tool_") == []
    assert parser.push("call> so") == [Content("so")]


def test_arguments_before_the_name_are_a_call() -> None:
    parser = ToolCallParser(["f"])
    assert parser.push('<tool_call>{"arguments": {"x": 1}, "name": "f"}') == []
    assert calls_in(parser.push("</tool_call>")) == ['{"x": 1}']


@pytest.mark.parametrize(
    ("body", "arguments", "rest"),
    [
        ('{"name": "f", "arguments": {"x": "half', '{"x": "half...', ""),
        ('{"name": "f", "arguments": {}', "{}", ""),
        ('{"name": "f", "arguments": {}</tool_call> a', "{}", "a"),
        ('{"name": "f", "arguments": {}}\n</tool', "{}", ""),
        ('{"name": "f", "arguments": {}, "more": 1}</tool_call>', "{}", ', "more": 1}</tool_call>'),
        ('{"name": "f", "arguments": {oops}}</tool_call>', "{oops}", ""),
    ],
)
def test_a_call_that_has_begun_stays_a_call(body: str, arguments: str, rest: str) -> None:
    parts = parse(ToolCallParser(["f"]), [f"see <tool_call>{body}"])
    assert parts[0] == Content("see")
    assert calls_in(parts) == [arguments]
    assert [part.text for part in parts[1:] if isinstance(part, Content)] == (
        [rest] if rest else []
    )


@pytest.mark.parametrize(
    "opening",
    [
        '<tool_call>{"arguments"',
        r'<tool_call>{"\u0061rguments": ["',
        '<tool_call>{"arguments"<tool_call>{"name"',
        '<tool_call>{"arguments"<tool_call>x',
    ],
)
def test_many_openings_are_decoded_once_and_not_for_each_other(
    monkeypatch: pytest.MonkeyPatch, opening: str
) -> None:
    """Each opening decoded the rest of the text: half the square of the openings."""
    text, decoded, loads = opening * 1000 + "x</tool_call>", list[int](), json.loads

    def count(body: str) -> object:
        decoded.append(len(body))
        return loads(body)

    monkeypatch.setattr("tinyllm_serve.generation.tool_calls.json.loads", count)
    parser = ToolCallParser(["f"])
    assert joined(parser.push(text) + parser.finish()) == [Content(text)]
    assert sum(decoded) < 2 * len(text)  # heads, too
