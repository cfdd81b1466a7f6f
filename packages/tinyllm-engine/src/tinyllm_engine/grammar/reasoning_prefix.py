"""The text before a grammar applies."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Bool


class ReasoningPrefix:
    """Text up to and including an end mark, such as "</think>", in which most tokens are allowed.

    There are two exceptions. If the prefix has an opening, such as "<think>", the text must begin
    with the opening, so that an answer cannot pass for a prefix and get around the grammar. And no
    token may end the mark and go on behind it, because the text behind it belongs to the grammar.

    The state is a number: within the opening, the number of its bytes so far; behind it, the length
    of the opening plus the number of bytes of the mark that the text ends with, all of them once
    the mark has been found.
    """

    def __init__(self, mark: str, words: Sequence[bytes], opening: str = "") -> None:
        """Begin before the first token.

        Args:
            mark: the text that ends the prefix; if empty, the grammar applies from the start.
            words: the bytes of each token.
            opening: the text that begins the prefix; if empty, any text does.
        """
        self._mark = mark.encode()
        self._opening = opening.encode()
        self._words = words
        self._allowed: dict[int, Bool[mx.array, "V"]] = {}

    def is_over(self, state: int) -> bool:
        """Return True if the mark has been found."""
        return state == len(self._opening) + len(self._mark)

    def next(self, state: int, token: int) -> int:
        """Return the state after a token."""
        word, opening = self._words[token], len(self._opening)
        if state + len(word) < opening:
            return state + len(word)
        text = self._searched(state, word)
        if self._mark in text:
            return opening + len(self._mark)
        longest = min(len(text), len(self._mark) - 1)
        matched = next(n for n in range(longest, -1, -1) if text.endswith(self._mark[:n]))
        return opening + matched

    def allows(self, state: int, token: int) -> bool:
        """Return True if a token continues the opening, and does not go on behind the mark."""
        word, missing = self._words[token], self._opening[state:]
        if missing and not (word and (missing.startswith(word) or word.startswith(missing))):
            return False
        _, found, behind = self._searched(state, word).partition(self._mark)
        return not (found and behind)

    def allowed(self, state: int) -> Bool[mx.array, "V"]:
        """Return the mask of all tokens that `allows`; each state is computed once."""
        if state not in self._allowed:
            tokens = range(len(self._words))
            self._allowed[state] = mx.array([self.allows(state, token) for token in tokens])
        return self._allowed[state]

    def _searched(self, state: int, word: bytes) -> bytes:
        """Return the bytes that may hold the mark: its matched part, and the token's own bytes."""
        opening = len(self._opening)
        return self._mark[: max(state - opening, 0)] + word[max(opening - state, 0) :]
