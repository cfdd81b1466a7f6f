"""What is said before a grammar holds."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Bool


class Preamble:
    """Text up to and including a mark, such as "</think>", in which nearly everything is allowed.

    The exceptions: if it has an opening, such as "<think>", it begins with that, so that no text
    passes for a preamble and gets around the grammar. And no token ends the mark and goes on behind
    it, for what is behind belongs to the grammar.

    A place in the text is a number: within the opening, how many bytes of it there are; behind it
    that, and how many bytes of the mark the text ends with, all of them once the mark has been met.
    """

    def __init__(self, mark: str, words: Sequence[bytes], opening: str = "") -> None:
        """Look for a mark.

        Args:
            mark: the text that ends the preamble; with none, the grammar holds from the start.
            words: the bytes of each token.
            opening: the text that begins it; with none, anything does.
        """
        self._mark = mark.encode()
        self._opening = opening.encode()
        self._words = words
        self._allowed: dict[int, Bool[mx.array, "V"]] = {}

    def is_over(self, place: int) -> bool:
        """Whether the mark has been met."""
        return place == len(self._opening) + len(self._mark)

    def next(self, place: int, token: int) -> int:
        """The place after a token."""
        word, opening = self._words[token], len(self._opening)
        if place + len(word) < opening:
            return place + len(word)
        text = self._searched(place, word)
        if self._mark in text:
            return opening + len(self._mark)
        longest = min(len(text), len(self._mark) - 1)
        met = next(n for n in range(longest, -1, -1) if text.endswith(self._mark[:n]))
        return opening + met

    def allows(self, place: int, token: int) -> bool:
        """Whether a token goes on with the opening, and leaves what is behind the mark alone."""
        word, missing = self._words[token], self._opening[place:]
        if missing and not (word and (missing.startswith(word) or word.startswith(missing))):
            return False
        _, found, behind = self._searched(place, word).partition(self._mark)
        return not (found and behind)

    def allowed(self, place: int) -> Bool[mx.array, "V"]:
        """All tokens that may come at a place; each place is looked at once."""
        if place not in self._allowed:
            tokens = range(len(self._words))
            self._allowed[place] = mx.array([self.allows(place, token) for token in tokens])
        return self._allowed[place]

    def _searched(self, place: int, word: bytes) -> bytes:
        """Where the mark may be: what was met of it, and what a token adds behind the opening."""
        opening = len(self._opening)
        return self._mark[: max(place - opening, 0)] + word[max(opening - place, 0) :]
