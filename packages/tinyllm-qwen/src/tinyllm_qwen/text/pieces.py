"""Division of a long text into pieces whose tokens, one after the other, are those of the text."""

import json
import re
from collections.abc import Iterator, Sequence

import tokenizers

_STEP = 50_000  # characters
PIECE_LENGTH = 1 << 16
"""The least number of characters of a piece. Inside the library a token takes 130 bytes until its
piece is encoded."""

# The patterns of Qwen2, Qwen2.5 and Qwen3, and of models that count marks as letters.
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = frozenset(
    {
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
    }
)

# Positions at which a word of these patterns ends in any text. No alternative continues after a
# letter with a character that is no letter, after a digit, or after a line break with a character
# that is no white space. The only lookahead, of white space, never sees past such a position. The
# character after it is never composed with the one before (NFC), because it is ASCII or
# punctuation.
_BOUNDARY = re.compile(
    "(?<=[A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3])"
    "(?=[\\x00-@\\[-`{-\\x7f\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])"
    "|(?<=[0-9])(?=[\\x00-\\x7f])"
    "|(?<=[\r\n])(?=[!-~])"
)


def can_be_cut(backend: tokenizers.Tokenizer) -> bool:
    """Return True if `cut` keeps the tokens of this tokenizer.

    The tokenizer must have one of the known patterns. Its added tokens must not depend on the text
    around them.
    """
    normalizer = backend.normalizer
    if normalizer is not None and _state(normalizer) != {"type": "NFC"}:
        return False
    if any(
        token.lstrip or token.rstrip or token.single_word or token.normalized
        for token in backend.get_added_tokens_decoder().values()
    ):
        return False
    match _state(backend.pre_tokenizer):
        case {
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, **split},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ]
        }:
            isolated = {"behavior": "Isolated", "invert": False}
            return pattern in PATTERNS and split == isolated
    return False


def cut(
    text: str, added_tokens: Sequence[str], size: int, longest: int | None = None
) -> Iterator[str]:
    """Yield pieces that end with the first word that ends after `size` characters.

    The last piece may be shorter. No piece ends inside one of `added_tokens`. The search for an end
    stops after `longest` characters: a piece of that length may end anywhere.
    """
    start = 0
    while start < len(text):
        last = len(text) if longest is None else min(len(text), start + longest)
        end = _end(text, min(start + size, last), last, added_tokens)
        yield text[start:end]
        start = end


def _end(text: str, first: int, last: int, added_tokens: Sequence[str]) -> int:
    """Return the first possible end of a piece from `first` on; `last` if there is none before."""
    # In steps, because a search holds Python's lock: 10 MB take 1.5 s.
    for position in range(first, last, _STEP):
        for boundary in _BOUNDARY.finditer(text, position, min(position + _STEP + 1, last)):
            end = boundary.start()
            if not any(
                token in text[max(0, end - len(token) + 1) : end + len(token) - 1]
                for token in added_tokens
            ):
                return end
    return last


def _state(component: object) -> object:
    """Return the settings of a component of the library, as JSON values."""
    state = component.__getstate__()
    return json.loads(state) if isinstance(state, bytes) else None
