"""Parsers of reasoning, content and function calls, for text in any pieces."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinyllm_serve.generation.parsers import (
    AnswerParser,
    Content,
    Part,
    Reasoning,
    ToolCall,
    ToolCallParser,
)

PIECES = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {"x": [1, "</tool"]}}',
    '{"name": "f", "arguments": {}}',
    '{"name": "g", "arguments": {}}',
    '{"name": "f"}',
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
        else:
            together.append(part)
    return together


def parse(parser: AnswerParser | ToolCallParser, pieces: list[str]) -> list[Part]:
    parts = [part for piece in pieces for part in parser.push(piece)]
    return joined(parts + parser.finish())


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]


@given(text=TEXTS, places=st.lists(st.integers(0, 10**6)), opened=st.booleans())
def test_the_result_does_not_depend_on_the_pieces(
    text: str, places: list[int], opened: bool
) -> None:
    whole = parse(AnswerParser(opened=opened, functions=["f"]), [text])
    assert parse(AnswerParser(opened=opened, functions=["f"]), cut(text, places)) == whole
    assert parse(AnswerParser(opened=opened, functions=["f"]), list(text)) == whole


CALL = re.compile(r"<tool_call>((?:(?!<tool_call>).)*?)</tool_call>", re.DOTALL)


@given(text=TEXTS)
def test_calls_match_a_regular_expression(text: str) -> None:
    bodies = []
    for body in CALL.findall(text):
        try:
            call = json.loads(body)
        except ValueError:
            continue
        if call.get("name") == "f" and call.keys() == {"name", "arguments"}:
            bodies.append(call["arguments"])
    calls = [p for p in parse(ToolCallParser(["f"]), [text]) if isinstance(p, ToolCall)]
    assert [json.loads(call.arguments) for call in calls] == bodies


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
        '{"name": "f", "arguments": {}, "more": 1}',
        '{"name": "f", "arguments": {}',
        "[" * 100_000,
    ],
)
def test_an_invalid_call_is_text(body: str) -> None:
    text = f"see <tool_call>{body}</tool_call> "
    assert parse(ToolCallParser(["f"]), [text]) == [Content(text)]


def test_text_before_a_call_is_not_held_back() -> None:
    parser = ToolCallParser(["f"])
    assert parser.push("Let me see. <tool") == [Content("Let me see.")]
    assert parser.push('_call>{"name"') == []
    assert parser.push(': "f", "arguments": {}}</tool_call>') == [ToolCall("f", "{}")]
    assert parser.push("\n\n") == []
    assert parser.push("Done") == [Content("Done")]
