"""The reasoning prefix: the text of an answer before its grammar applies."""

from collections.abc import Sequence
from functools import cached_property
from typing import cast

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
        # Computed here and not by the engine's thread: 0.2 s for 152,000 tokens and all states.
        states = range(len(self._opening) + len(self._mark))
        self._bytes = [self._allowed_bytes(state) for state in states]
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
        """Return the mask of allowed tokens in a state before the end of the prefix."""
        if state not in self._allowed:
            mask = memoryview(self._bytes[state])
            self._allowed[state] = mx.array(cast("list[int]", mask)).astype(mx.bool_)
        return self._allowed[state]

    def _allowed_bytes(self, state: int) -> bytes:
        """Return V bytes: 1 for the tokens that are allowed in a state."""
        missing = self._opening[state:]
        # Check the few tokens that may differ from all others.
        checked = self._by_first_byte[missing[0]] if missing else self._longer
        allowed = bytearray((b"\0" if missing else b"\1") * len(self._words))
        for token in checked:
            allowed[token] = self.allows(state, token)
        return bytes(allowed)

    @cached_property
    def _by_first_byte(self) -> list[list[int]]:
        """The tokens that begin with each of the 256 bytes."""
        tokens: list[list[int]] = [[] for _ in range(256)]
        for token, word in enumerate(self._words):
            if word:
                tokens[word[0]].append(token)
        return tokens

    @cached_property
    def _longer(self) -> list[int]:
        """The tokens with further bytes after a last byte of the mark. Few words have one."""
        last = self._mark[-1:]
        return [token for token, word in enumerate(self._words) if last in word[:-1]]

    def _searched(self, state: int, word: bytes) -> bytes:
        """Return the bytes to search for the mark.

        The result has the bytes of the mark matched so far, and the bytes of the token after the
        opening.
        """
        opening = len(self._opening)
        return self._mark[: max(state - opening, 0)] + word[max(opening - state, 0) :]
