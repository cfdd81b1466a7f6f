"""What is said before a grammar holds."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Bool


class Preamble:
    """Text up to and including a mark, such as "</think>", in which nearly everything is allowed.

    The one exception: no token ends the mark and goes on behind it, for what is behind belongs to
    the grammar.

    A place in the text is a number: how many bytes of the mark the text ends with, all of them once
    the mark has been met.
    """

    def __init__(self, mark: str, words: Sequence[bytes]) -> None:
        """Look for a mark.

        Args:
            mark: the text that ends the preamble; with none, the grammar holds from the start.
            words: the bytes of each token.
        """
        self._mark = mark.encode()
        self._words = words
        self._allowed: dict[int, Bool[mx.array, "V"]] = {}

    def is_over(self, place: int) -> bool:
        """Whether the mark has been met."""
        return place == len(self._mark)

    def next(self, place: int, token: int) -> int:
        """The place after a token."""
        text = self._mark[:place] + self._words[token]
        if self._mark in text:
            return len(self._mark)
        longest = min(len(text), len(self._mark) - 1)
        return next(n for n in range(longest, -1, -1) if text.endswith(self._mark[:n]))

    def allows(self, place: int, token: int) -> bool:
        """Whether a token leaves what is behind the mark alone."""
        _, found, behind = (self._mark[:place] + self._words[token]).partition(self._mark)
        return not (found and behind)

    def allowed(self, place: int) -> Bool[mx.array, "V"]:
        """All tokens that may come at a place; each place is looked at once."""
        if place not in self._allowed:
            tokens = range(len(self._words))
            self._allowed[place] = mx.array([self.allows(place, token) for token in tokens])
        return self._allowed[place]
