"""Variables that outlive a thread: Metal has them in the address space `constant` alone.

static int n = 0;           in a function or a type
float table[2] = {1, 2};    outside of both

A host would keep their values from thread to thread and from group to group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from metalhost.tokens import Token, tokenize

MESSAGE = "a variable that outlives a thread: Metal has those in the address space 'constant' alone"
_DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_TYPES = frozenset({"struct", "class", "union", "enum"})
# What begins a statement outside of functions that is no variable, or cannot be told from one.
_OTHERS = _TYPES | {"using", "typedef", "template", "friend", "extern"}
_OPEN, _CLOSE = frozenset("([<"), frozenset(")]>")


def outliving(text: str, *, in_function: bool) -> Iterator[Token]:
    """The first token of each such variable.

    Args:
        text: a part of a kernel's text.
        in_function: whether it is the body of a function.
    """
    macros = set(_DEFINED.findall(text))  # which may stand for `constant`
    statement: list[Token] = []
    blocks: list[str] = []  # what the open braces enclose
    for token in tokenize(text):
        if not token.counts:
            continue
        if token.text == "{":
            block = _block([part.text for part in statement])
            blocks.append(block)
        if token.text == "}" and blocks:
            block = blocks.pop()
        if token.text not in ("{", "}", ";"):
            if "value" not in blocks:
                statement.append(token)
        elif token.text == ";" or block != "value":
            words = [part.text for part in statement]
            local = in_function or not set(blocks) <= {"namespace"}
            if token.text == ";" and macros.isdisjoint(words) and _outlives(words, local=local):
                yield statement[0]
            statement.clear()


def _block(words: list[str]) -> str:
    """What a brace encloses, by the statement that it is in."""
    outside = _outside_brackets(words)
    if "namespace" in outside:
        return "namespace"
    if not _TYPES.isdisjoint(outside):
        return "type"
    is_value = "=" in outside or (len(outside) > 1 and "(" not in outside)
    return "value" if is_value else "function"


def _outlives(words: list[str], *, local: bool) -> bool:
    """Whether a statement declares such a variable."""
    outside = _outside_brackets(words)
    head = outside[: outside.index("=")] if "=" in outside else outside
    named = sum(word.isidentifier() for word in head)
    if named < 2 or "constant" in head or "(" in head or words[0] in _OTHERS:
        return False
    return "static" in head or not local


def _outside_brackets(words: list[str]) -> list[str]:
    """Without what stands in brackets; of these the opening ones are left."""
    found, depth = [], 0
    for text in words:
        depth -= text in _CLOSE and depth > 0
        if depth == 0 and text not in _CLOSE:
            found.append(text)
        depth += text in _OPEN
    return found
