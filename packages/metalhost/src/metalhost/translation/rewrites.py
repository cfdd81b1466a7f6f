"""Rewrites of Metal syntax that C++ lacks. Each rewrite maps a list of tokens to another.

The headers in native/msl provide everything that needs no rewriting.

    constant float table[2]     const float table[2], because `constant` data is read-only
    v.zyx                       v[metal::swizzle<2, 1, 0>()], or swizzled<...> if assigned to
    p->zyx                      p->operator[](metal::swizzle<2, 1, 0>())
    1.5h, 2.0bf                 half(1.5f), bfloat(2.0f)
    0.5, 1e-5                   0.5f, 1e-5f, because Metal has no double
    float4(a, b)                metal::make<float4>(a, b), only for clang's vector types
"""

import functools
import re
from collections.abc import Callable, Set

from metalhost.translation.tokens import (
    TYPE_KEYWORDS,
    Token,
    join,
    outside_angles,
    tokenize,
)

Rewrite = Callable[[list[Token]], list[Token]]

_COMPONENTS = re.compile(r"[xyzw]{2,4}|[rgba]{2,4}")
_ASSIGNMENTS = frozenset(
    {"=", *(f"{op}=" for op in ("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"))}
)
_FLOAT = re.compile(
    r"""(?P<value> (?:\d+\.\d*|\.\d+|\d+(?=[eE])) (?:[eE][+-]?\d+)?
      | 0[xX][\da-fA-F]*\.?[\da-fA-F]* [pP][+-]?\d+ )
    (?P<suffix>h|bf|)""",
    re.VERBOSE,
)
_DEFINE = re.compile(r"\s*#\s*define\b")
_VECTOR = re.compile(r"(?:bool|u?char|u?short|u?int|u?long|half|float|bfloat)[234]")


def literals(tokens: list[Token]) -> list[Token]:
    """Give each floating-point literal its type: float, half or bfloat."""
    return [_literal(token) if token.kind == "number" else token for token in tokens]


def _literal(token: Token) -> Token:
    match = _FLOAT.fullmatch(token.text)
    if match is None:
        return token
    value = f"{match['value']}f"
    typed = {"h": f"half({value})", "bf": f"bfloat({value})", "": value}[match["suffix"]]
    return Token(token.kind, typed, token.line)


def constants(tokens: list[Token]) -> list[Token]:
    """Replace `constant` by `const`, or by nothing beside `const` or `constexpr`."""
    result = []
    for token, neighbors in zip(tokens, _neighbors(tokens), strict=True):
        if token.text == "constant" and token.kind == "word":
            is_const = not {"const", "constexpr"}.isdisjoint(neighbors)
            result.append(Token("word", "" if is_const else "const", token.line))
        else:
            result.append(token)
    return result


def swizzles(tokens: list[Token], members: Set[str] = frozenset()) -> list[Token]:
    """Replace each swizzle `v.zyx` by an index whose type holds the components.

    Args:
        tokens: tokens of a text.
        members: names that are no swizzles, from `members_like_swizzles`.
    """
    result: list[Token] = []
    last_code = -1  # index in `result` of the last code token, which is the dot before a swizzle
    for token, (before, after) in zip(tokens, _neighbors(tokens), strict=True):
        is_member = before in (".", "->") and after != "(" and token.text not in members
        if is_member and token.kind == "word" and _COMPONENTS.fullmatch(token.text):
            names = "xyzw" if token.text[0] in "xyzw" else "rgba"
            indices = ", ".join(str(names.index(letter)) for letter in token.text)
            tag = "swizzled" if after in _ASSIGNMENTS else "swizzle"
            index = f"metal::{tag}<{indices}>()"
            if before == ".":
                result[last_code] = Token("symbol", "", result[last_code].line)
                result.append(Token("symbol", f"[{index}]", token.line))
            else:
                result.append(Token("symbol", f"operator[]({index})", token.line))
            continue
        if token.is_code:
            last_code = len(result)
        result.append(token)
    return result


@functools.lru_cache(maxsize=256)
def members_like_swizzles(text: str) -> frozenset[str]:
    """Return the members of a text's own types that are named like swizzles, as in `float ab;`."""
    found: set[str] = set()
    statement: list[str] = []  # code tokens since the end of the last statement
    blocks: list[bool] = []  # for each open brace, True if it belongs to a type
    tokens = tokenize(text)
    for token, (before, after) in zip(tokens, _neighbors(tokens), strict=True):
        if not token.is_code:
            continue
        if token.text == "{":
            blocks.append(before != ")" and not TYPE_KEYWORDS.isdisjoint(outside_angles(statement)))
        elif token.text == "}" and blocks:
            blocks.pop()
        is_declared = before not in (".", "->") and after in (";", ",", "=", "[", "{")
        in_type = blocks[-1:] == [True] and statement.count("(") == statement.count(")")
        if in_type and is_declared and _COMPONENTS.fullmatch(token.text):
            found.add(token.text)
        if token.text in ("{", "}", ";"):
            statement.clear()
        else:
            statement.append(token.text)
    return frozenset(found)


def vector_constructors(tokens: list[Token]) -> list[Token]:
    """Replace vector constructors by calls of `make`.

    clang's vector types have no constructor of several arguments.
    """
    neighbors = _neighbors(tokens)
    aliases = _vector_aliases(tokens)
    result: list[Token] = []
    at = 0
    while at < len(tokens):
        token, (before, after) = tokens[at], neighbors[at]
        end = at + 1
        is_vector = _VECTOR.fullmatch(token.text) is not None or token.text in aliases
        if token.text == "vec" and after == "<":
            end = _after_template_arguments(tokens, at + 1)
            is_vector = True
            after = next((t.text for t in tokens[end:] if t.is_code), "")
        if is_vector and after == "(" and before not in (".", "->"):
            result.append(Token("word", f"make<{join(tokens[at:end])}>", token.line))
        else:
            result.extend(tokens[at:end])
        at = end
    return result


def _vector_aliases(tokens: list[Token]) -> set[str]:
    """Return the names that `using` or `typedef` gives to vector types."""
    words = [token.text for token in tokens if token.is_code]
    aliases = set()
    for at, word in enumerate(words):
        statement = words[at : words.index(";", at)] if ";" in words[at:] else []
        is_vector = any(part == "vec" or _VECTOR.fullmatch(part) for part in statement)
        if word == "using" and statement[2:3] == ["="] and is_vector:
            aliases.add(statement[1])
        elif word == "typedef" and is_vector:
            aliases.add(statement[-1])
    return aliases


def _after_template_arguments(tokens: list[Token], start: int) -> int:
    """Return the index after the `>` that closes the first `<` at or after `start`."""
    depth = 0
    for at in range(start, len(tokens)):
        depth += (tokens[at].text == "<") - (tokens[at].text == ">")
        if depth == 0 and tokens[at].is_code:
            return at + 1
    return len(tokens)


def with_macros(rewrite: Rewrite) -> Rewrite:
    """Return a rewrite that also rewrites the replacement text of macros."""

    def rewrite_all(tokens: list[Token]) -> list[Token]:
        return [_rewrite_macro(token, rewrite) for token in rewrite(tokens)]

    return rewrite_all


def _rewrite_macro(token: Token, rewrite: Rewrite) -> Token:
    if token.kind != "directive" or _DEFINE.match(token.text) is None:
        return token
    hash_sign, rest = token.text.split("#", 1)
    return Token("directive", f"{hash_sign}#{join(rewrite(tokenize(rest)))}", token.line)


def _neighbors(tokens: list[Token]) -> list[tuple[str, str]]:
    """Return the code tokens before and after each token."""
    before, last = [], ""
    for token in tokens:
        before.append(last)
        last = token.text if token.is_code else last
    after, following = [], ""
    for token in reversed(tokens):
        after.append(following)
        following = token.text if token.is_code else following
    return list(zip(before, reversed(after), strict=True))
