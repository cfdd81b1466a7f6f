"""The reasoning prefix: the text of an answer before its grammar applies."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Bool


class ReasoningPrefix:
    """Text up to and including an end mark, such as "</think>", in which most tokens are allowed.

    Two kinds of tokens are not allowed. If the prefix has an opening, such as "<think>", the text
    must start with the opening. Otherwise an answer without reasoning would count as a prefix and
    evade the grammar. A token that contains the end of the mark and further bytes is not allowed
    either, because bytes after the mark belong to the grammar.

    The state is a number. Within the opening, it is the number of bytes of the opening so far.
    After the opening, it is the length of the opening plus the number of bytes of the mark with
    which the text ends. Once the mark is complete, the state no longer changes.
    """

    def __init__(self, mark: str, words: Sequence[bytes], opening: str = "") -> None:
        """Store the marks and the vocabulary.

        Args:
            mark: the end of the prefix. If empty, the grammar applies from the start.
            words: the bytes of each token.
            opening: the start of the prefix. If empty, the prefix may start with any text.
        """
        self._mark = mark.encode()
        self._opening = opening.encode()
        self._words = words
        self._allowed: dict[int, Bool[mx.array, "V"]] = {}

    def is_over(self, state: int) -> bool:
        """Return True if the mark is complete."""
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
        """Return True if a token fits the opening, and has no bytes after the end of the mark."""
        word, missing = self._words[token], self._opening[state:]
        if missing and not (word and (missing.startswith(word) or word.startswith(missing))):
            return False
        _, found, behind = self._searched(state, word).partition(self._mark)
        return not (found and behind)

    def allowed(self, state: int) -> Bool[mx.array, "V"]:
        """Return the mask of allowed tokens in a state. The mask of each state is computed once."""
        if state not in self._allowed:
            tokens = range(len(self._words))
            self._allowed[state] = mx.array([self.allows(state, token) for token in tokens])
        return self._allowed[state]

    def _searched(self, state: int, word: bytes) -> bytes:
        """Return the bytes to search for the mark.

        The result has the bytes of the mark matched so far, and the bytes of the token after the
        opening.
        """
        opening = len(self._opening)
        return self._mark[: max(state - opening, 0)] + word[max(opening - state, 0) :]
