"""Tokenizer: joined tokens give the text, with the right kinds and lines."""

import pytest
from metalhost.translation.tokens import join, tokenize

TEXT = """#define A(x) \\
  (x + 1) // two lines
int a = 0x1Fu, b = 1.5e-3f; /* over
lines */ char c = '"', *s = "// no \\" comment";
  # include <metal_stdlib>
a <<= b->c ? d::e : vec<vec<int, 2>>(f);
"""


def test_joined_tokens_give_the_text() -> None:
    assert join(tokenize(TEXT)) == TEXT


def test_kinds_and_lines_of_tokens() -> None:
    found = {token.text: (token.kind, token.line) for token in tokenize(TEXT)}
    assert found["#define A(x) \\\n  (x + 1) // two lines"] == ("directive", 1)
    assert found["0x1Fu"] == ("number", 3)
    assert found["1.5e-3f"] == ("number", 3)
    assert found["/* over\nlines */"] == ("comment", 3)
    assert found["'\"'"] == ("string", 4)
    assert found['"// no \\" comment"'] == ("string", 4)
    assert found["  # include <metal_stdlib>"] == ("directive", 5)
    assert found["<<="] == ("symbol", 6)
    assert found["->"] == ("symbol", 6)
    assert found["vec"] == ("word", 6)
    assert ">>" not in found


@pytest.mark.parametrize("text", ["", "\n", "'", '"', "/*", "#", "\\", "1..2", "@ä"])
def test_incomplete_text_has_tokens(text: str) -> None:
    assert join(tokenize(text)) == text
