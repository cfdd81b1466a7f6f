"""Metal's words and literals, written so that a C++ compiler takes them.

What needs no rewriting is a matter of the headers in native/msl. These do:

    constant float table[2]     const float table[2]: such data is read-only, const or not
    v.zyx                       v[metal::swizzle<2, 1, 0>()]; swizzled<...> where it is assigned to
    1.5h, 2.0bf                 half(1.5f), bfloat(2.0f)
    0.5, 1e-5                   0.5f, 1e-5f: Metal has no double
    float4(a, b)                metal::make<float4>(a, b), for clang's own vectors alone
"""

from __future__ import annotations

import re
from collections.abc import Callable

from metalhost.tokens import Token, join, tokenize

Pass = Callable[[list[Token]], list[Token]]

_COMPONENTS = re.compile(r"[xyzw]{2,4}|[rgba]{2,4}")
_ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/="})
_FLOAT = re.compile(
    r"""(?P<value> (?:\d+\.\d*|\.\d+|\d+(?=[eE])) (?:[eE][+-]?\d+)?
      | 0[xX][\da-fA-F]*\.?[\da-fA-F]* [pP][+-]?\d+ )
    (?P<of>h|bf|)""",
    re.VERBOSE,
)
_VECTOR = re.compile(r"(?:bool|u?char|u?short|u?int|u?long|half|float|bfloat)[234]")


def literals(tokens: list[Token]) -> list[Token]:
    """Every float literal says that it is a float, a half or a bfloat."""
    return [_literal(token) if token.kind == "number" else token for token in tokens]


def _literal(token: Token) -> Token:
    found = _FLOAT.fullmatch(token.text)
    if found is None:
        return token
    value = f"{found['value']}f"
    wrapped = {"h": f"half({value})", "bf": f"bfloat({value})", "": value}[found["of"]]
    return Token(token.kind, wrapped, token.line)


def constants(tokens: list[Token]) -> list[Token]:
    """`constant` is const, said once."""
    neighbors = _neighbors(tokens)
    done = []
    for token, around in zip(tokens, neighbors, strict=True):
        if token.text == "constant" and token.kind == "word":
            said = {"const", "constexpr"} & set(around)
            done.append(Token("word", "" if said else "const", token.line))
        else:
            done.append(token)
    return done


def swizzles(tokens: list[Token]) -> list[Token]:
    """A choice of components is an index of a type of its own."""
    done: list[Token] = []
    neighbors = _neighbors(tokens)
    dot = -1  # where the last token that counts is in `done`
    for token, (before, after) in zip(tokens, neighbors, strict=True):
        if before == "." and after != "(" and _COMPONENTS.fullmatch(token.text):
            names = "xyzw" if token.text[0] in "xyzw" else "rgba"
            chosen = ", ".join(str(names.index(letter)) for letter in token.text)
            tag = "swizzled" if after in _ASSIGNMENTS else "swizzle"
            done[dot] = Token("symbol", "", done[dot].line)
            done.append(Token("symbol", f"[metal::{tag}<{chosen}>()]", token.line))
            continue
        if token.counts:
            dot = len(done)
        done.append(token)
    return done


def vector_constructors(tokens: list[Token]) -> list[Token]:
    """clang's vectors have no constructor of several arguments; a function makes them."""
    neighbors = _neighbors(tokens)
    aliases = _vector_aliases(tokens)
    done: list[Token] = []
    at = 0
    while at < len(tokens):
        token, (before, after) = tokens[at], neighbors[at]
        end = at + 1
        named = _VECTOR.fullmatch(token.text) is not None or token.text in aliases
        if token.text == "vec" and after == "<":
            end = _after_template_arguments(tokens, at + 1)
            named = True
            after = next((t.text for t in tokens[end:] if t.counts), "")
        if named and after == "(" and before not in (".", "->"):
            done.append(Token("word", f"make<{join(tokens[at:end])}>", token.line))
        else:
            done.extend(tokens[at:end])
        at = end
    return done


def _vector_aliases(tokens: list[Token]) -> set[str]:
    """The names that the text gives to vector types, by `using` or `typedef`."""
    words = [token.text for token in tokens if token.counts]
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
    """The index behind the `>` that closes the first `<` from `start` on."""
    depth = 0
    for at in range(start, len(tokens)):
        depth += (tokens[at].text == "<") - (tokens[at].text == ">")
        if depth == 0 and tokens[at].counts:
            return at + 1
    return len(tokens)


def with_macros(apply: Pass) -> Pass:
    """The same pass, over the replacements of macros as well."""

    def both(tokens: list[Token]) -> list[Token]:
        return [_macro(token, apply) for token in apply(tokens)]

    return both


def _macro(token: Token, apply: Pass) -> Token:
    if token.kind != "directive" or not token.text.lstrip().startswith("#define"):
        return token
    hash_sign, rest = token.text.split("#", 1)
    return Token("directive", f"{hash_sign}#{join(apply(tokenize(rest)))}", token.line)


def _neighbors(tokens: list[Token]) -> list[tuple[str, str]]:
    """Of each token, the ones before and after it that count."""
    before, last = [], ""
    for token in tokens:
        before.append(last)
        last = token.text if token.counts else last
    after, following = [], ""
    for token in reversed(tokens):
        after.append(following)
        following = token.text if token.counts else following
    return list(zip(before, reversed(after), strict=True))
