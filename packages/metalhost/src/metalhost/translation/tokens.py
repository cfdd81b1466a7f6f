"""Tokenizer for Metal text, as detailed as the rewrites and the lint need."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

TYPE_KEYWORDS = frozenset({"struct", "class", "union"})
Kind = Literal["space", "comment", "string", "directive", "word", "number", "symbol"]

# `>>` is two tokens, because it may close two templates.
_TOKEN = re.compile(
    r"""
      (?P<comment> //[^\n]* | /\*.*?\*/ )
    | (?P<string> "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
    | (?P<directive> ^[ \t]*\#(?:[^\n\\]|\\.|\\\n)* )
    | (?P<word> [A-Za-z_]\w* )
    | (?P<number> (?:0[xX][\da-fA-F.]+(?:[pP][+-]?\d+)? | \.?\d[\d.]*(?:[eE][+-]?\d+)?)\w* )
    | (?P<space> \n | [^\S\n]+ )
    | (?P<symbol> :: | -> | \+\+ | -- | <<= | >>= | [-+*/%&|^=!<>]= | && | \|\| | << | . )
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """Token of a text.

    Attributes:
        kind: kind of token. A directive is a whole line of the preprocessor.
        text: the characters of the token.
        line: line on which the token begins, counted from 1.
    """

    kind: Kind
    text: str
    line: int

    @property
    def is_code(self) -> bool:
        """True unless the token is white space, a comment or a directive."""
        return self.kind not in ("space", "comment", "directive")


def tokenize(text: str, line: int = 1) -> list[Token]:
    """Split a text into tokens. `join` gives the text back."""
    tokens = []
    for match in _TOKEN.finditer(text):
        tokens.append(Token(cast(Kind, match.lastgroup), match.group(), line))
        line += match.group().count("\n")
    return tokens


def join(tokens: Iterable[Token]) -> str:
    """Concatenate the text of tokens."""
    return "".join(token.text for token in tokens)


def outside_angles(words: list[str]) -> list[str]:
    """Return the words outside of template parameter lists, which may contain `class`."""
    found, depth = [], 0
    for text in words:
        depth += (text == "<") - (text == ">")
        if depth == 0:
            found.append(text)
    return found
