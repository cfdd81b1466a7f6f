"""Lint for variables of static storage duration, which Metal allows only in `constant`.

static int n = 0;           in a function or a type
float table[2] = {1, 2};    outside of functions and types

On the host, their values would leak from one thread to the next, and from group to group.
"""

import re
from collections.abc import Iterator

from metalhost.translation.tokens import Token, tokenize

MESSAGE = "a variable that outlives a thread: Metal requires the address space 'constant' here"
DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_TYPES = frozenset({"struct", "class", "union", "enum"})
# First words of statements outside of functions that declare no variable, or may declare none.
_NO_VARIABLE = _TYPES | {"using", "typedef", "template", "friend", "extern"}
_OPEN, _CLOSE = frozenset("([<"), frozenset(")]>")


def static_variables(text: str, *, in_function: bool) -> Iterator[Token]:
    """Yield the first token of each variable that must be in `constant` and is not.

    Args:
        text: part of a kernel's text.
        in_function: True if the text is the body of a function.
    """
    macros = set(DEFINED.findall(text))  # a macro may expand to `constant`
    statement: list[Token] = []
    blocks: list[str] = []  # for each open brace, the kind of its block
    for token in tokenize(text):
        if not token.is_code:
            continue
        if token.text == "{":
            block = _block_kind([part.text for part in statement])
            blocks.append(block)
        if token.text == "}" and blocks:
            block = blocks.pop()
        if token.text not in ("{", "}", ";"):
            if "value" not in blocks:
                statement.append(token)
        elif token.text == ";" or block != "value":
            words = [part.text for part in statement]
            local = in_function or not set(blocks) <= {"namespace"}
            if (
                token.text == ";"
                and macros.isdisjoint(words)
                and _is_static_variable(words, local=local)
            ):
                yield statement[0]
            statement.clear()


def _block_kind(words: list[str]) -> str:
    """Return the kind of the block after these words: namespace, type, value or function."""
    outside = _outside_brackets(words)
    if "namespace" in outside:
        return "namespace"
    if not _TYPES.isdisjoint(outside):
        return "type"
    is_value = "=" in outside or (len(outside) > 1 and "(" not in outside)
    return "value" if is_value else "function"


def _is_static_variable(words: list[str], *, local: bool) -> bool:
    """Return True if a statement declares a static variable that is not in `constant`.

    Args:
        words: words of the statement.
        local: True in a function or a type, where only `static` variables outlive a thread.
    """
    outside = _outside_brackets(words)
    head = outside[: outside.index("=")] if "=" in outside else outside
    identifiers = sum(word.isidentifier() for word in head)
    if identifiers < 2 or "constant" in head or "(" in head or words[0] in _NO_VARIABLE:
        return False
    return "static" in head or not local


def _outside_brackets(words: list[str]) -> list[str]:
    """Return the words outside of brackets, and the opening brackets themselves."""
    found, depth = [], 0
    for text in words:
        depth -= text in _CLOSE and depth > 0
        if depth == 0 and text not in _CLOSE:
            found.append(text)
        depth += text in _OPEN
    return found
