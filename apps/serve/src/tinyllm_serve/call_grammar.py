"""Calls of functions as a language."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tinyllm_engine import Grammar

from tinyllm_serve.schemas.tools import Function
from tinyllm_serve.tool_call_parser import CLOSE, OPEN

# As templates write the calls of a conversation: json.dumps, on one line.
_SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def call_grammar(functions: Sequence[Function], *, several: bool) -> Grammar:
    """Calls in Qwen's format and nothing else, with arguments as each function's schema has them.

    Args:
        functions: those that may be called, at least one.
        several: whether there may be more calls than one.
    """
    calls = r'call ("\n" call)*' if several else "call"
    bodies = _bodies([(function, function.parameters or {}) for function in functions])
    return _grammar(f"start: {calls}", f"call: {json.dumps(OPEN)} body", *bodies)


def text_or_calls(functions: Sequence[Function]) -> Grammar:
    """Any text, in which what begins as a call goes on as one.

    Arguments of functions that are `strict` are as their schema has them, those of the others any
    object.

    Args:
        functions: those that may be called, at least one.
    """
    bodies = _bodies([(each, (each.parameters or {}) if each.strict else {}) for each in functions])
    return _grammar(
        "start: (before body)* REST?",
        f"before[lazy]: /(?s:.*){OPEN}/",
        f"REST: /(?s:.+)/ & ~/(?s:.*){OPEN}(?s:.*)/",
        *bodies,
    )


def _grammar(*rules: str) -> Grammar:
    return replace(Grammar.lark("\n".join(rules)), name="tools")


def _bodies(functions: Sequence[tuple[Function, Mapping[str, object]]]) -> list[str]:
    """The rules of what follows the mark of a call, given each function's schema."""
    names = [f"call_{place}" for place in range(len(functions))]
    closing = json.dumps(f"\n{CLOSE}")
    return [
        rf'body: "\n" ({" | ".join(names)}) {closing}',
        *(f"{name}: {_call(*each)}" for name, each in zip(names, functions, strict=True)),
    ]


def _call(function: Function, schema: Mapping[str, object]) -> str:
    """The rule of one function's calls; references within its schema stay what they are."""
    opening = json.dumps(f'{{"name": {json.dumps(function.name)}, "arguments": ')
    wanted = {**schema, "type": "object", "x-guidance": _SEPARATORS}
    return f'{opening} %json {json.dumps(wanted)} "}}"'
