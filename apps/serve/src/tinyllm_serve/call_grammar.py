"""Calls of functions as a language."""

import json
from collections.abc import Sequence
from dataclasses import replace

from tinyllm_engine import Grammar

from tinyllm_serve.schemas.tools import Function
from tinyllm_serve.tool_call_parser import CLOSE, OPEN

# As templates write the calls of a conversation: json.dumps, on one line.
_SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def call_grammar(functions: Sequence[Function], *, several: bool) -> Grammar:
    """Calls in Qwen's format, with arguments as each function's schema has them.

    Args:
        functions: those that may be called, at least one.
        several: whether there may be more calls than one.
    """
    opening, closing = json.dumps(f"{OPEN}\n"), json.dumps(f"\n{CLOSE}")
    names = [f"call_{place}" for place in range(len(functions))]
    rules = [
        'start: call ("\\n" call)*' if several else "start: call",
        f"call: {opening} ({' | '.join(names)}) {closing}",
        *(f"{name}: {_call(function)}" for name, function in zip(names, functions, strict=True)),
    ]
    return replace(Grammar.lark("\n".join(rules)), name="tools")


def _call(function: Function) -> str:
    """The rule of one function's calls; references within its schema stay what they are."""
    opening = json.dumps(f'{{"name": {json.dumps(function.name)}, "arguments": ')
    schema = {**(function.parameters or {}), "type": "object", "x-guidance": _SEPARATORS}
    return f'{opening} %json {json.dumps(schema)} "}}"'
