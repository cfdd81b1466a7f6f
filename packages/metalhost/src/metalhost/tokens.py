"""The tokens of Metal's text, as far as the passes over it need them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["space", "comment", "string", "directive", "word", "number", "symbol"]

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
    """A piece of the text.

    Attributes:
        kind: what it is; a directive is a whole line of the preprocessor.
        text: as written.
        line: where it begins, counted from 1.
    """

    kind: Kind
    text: str
    line: int

    @property
    def counts(self) -> bool:
        """Whether the compiler proper would see it."""
        return self.kind not in ("space", "comment", "directive")


def tokenize(text: str, line: int = 1) -> list[Token]:
    """All of the text, in order: joined, the tokens are the text again.

    `>>` is two tokens, since it may close two templates.
    """
    tokens = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        assert kind is not None
        tokens.append(Token(_KINDS[kind], match.group(), line))
        line += match.group().count("\n")
    return tokens


def join(tokens: Iterable[Token]) -> str:
    """The text of the tokens."""
    return "".join(token.text for token in tokens)


_KINDS: dict[str, Kind] = {
    "space": "space",
    "comment": "comment",
    "string": "string",
    "directive": "directive",
    "word": "word",
    "number": "number",
    "symbol": "symbol",
}
