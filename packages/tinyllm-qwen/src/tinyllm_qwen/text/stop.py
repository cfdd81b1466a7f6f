"""End a text before the first of several stop strings, while it is generated."""

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """A search for the first of several strings, in text that comes in pieces.

    No part of the string is shown. The first string is the string that is complete first. Of
    several strings that are complete at the same character the longest counts, so that the text
    ends before the earliest of their starts. The result does not depend on the division of the text
    into pieces.

    This is the automaton of Aho and Corasick (1975). Its state stands for the longest end of the
    text that a stop string begins with, which is exactly the text to hold back. A character costs
    amortized constant time for any number of stop strings.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Prepare to look for each of `stops`; with none, all text passes.

        Raises:
            ValueError: if a stop string is empty, or `stops` is itself a string.
        """
        if isinstance(stops, str):
            raise ValueError(f"stop strings: expected a list of them, got the string {stops!r}")
        if "" in stops:
            raise ValueError(f"stop strings: expected at least one character in each, got {stops}")
        # State 0 is the empty text. Of each state: its successors, its length in characters, the
        # longest shorter end of it that is a state too, and the length of the longest stop string
        # that it ends with (0 for none).
        self._next: list[dict[str, int]] = [{}]
        self._length = [0]
        self._suffix = [0]
        self._match = [0]
        for stop in stops:
            self._add(stop)
        self._link()
        self._state = 0
        self._held = ""
        self._met = False

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next piece of text.

        Returns:
            The text that may now be shown, and True once a stop string has been found: nothing more
            is shown then.
        """
        if self._met:
            return "", True
        state = self._state
        for position, character in enumerate(text):
            state = self._step(state, character)
            if self._match[state]:
                end = len(self._held) + position + 1 - self._match[state]
                shown, self._held, self._met = (self._held + text)[:end], "", True
                return shown, True
        text = self._held + text
        end = len(text) - self._length[state]
        self._state, self._held = state, text[end:]
        return text[:end], False

    def flush(self) -> str:
        """Return the text still held back, to be shown when generation ends for another reason."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._length.append(self._length[state] + 1)
                self._suffix.append(0)
                self._match.append(0)
            state = self._next[state][character]
        self._match[state] = len(stop)

    def _link(self) -> None:
        # Breadth first: the suffix of a state is shorter than the state and must be known before.
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            self._match[state] = self._match[state] or self._match[self._suffix[state]]
            for character, child in self._next[state].items():
                self._suffix[child] = self._step(self._suffix[state], character)
                queue.append(child)

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._suffix[state]
        return self._next[state].get(character, 0)
