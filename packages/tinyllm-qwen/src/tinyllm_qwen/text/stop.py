"""A search for stop strings in a text while it is generated."""

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """A search for the first of several stop strings, in text that is added in pieces.

    The first stop string is the one that is complete first, and no character of it is shown. If
    several stop strings are complete at the same character, the longest counts, so that the shown
    text contains no character of any of them. The result does not depend on the division of the
    text into pieces.

    The search is the automaton of Aho and Corasick (1975). Its state is the longest end of the text
    that is also the start of a stop string, and this end is the text to hold back. A character
    takes amortized constant time for any number of stop strings.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Make the automaton for `stops`. If `stops` is empty, all text is shown.

        Raises:
            ValueError: if a stop string is empty, or `stops` is itself a string.
        """
        if isinstance(stops, str):
            raise ValueError(f"stop strings: expected a list of them, got the string {stops!r}")
        if "" in stops:
            raise ValueError(f"stop strings: expected at least one character in each, got {stops}")
        # Each state is a text, the start of a stop string. State 0 is the empty text.
        self._next: list[dict[str, int]] = [{}]  # the next state for each character
        self._length = [0]  # the number of characters of the text
        self._suffix = [0]  # the longest proper suffix of the text that is a state too
        self._match = [0]  # the length of the longest stop string at its end; 0 for none
        for stop in stops:
            self._add(stop)
        self._link()
        self._state = 0
        self._held = ""
        self._met = False

    def push(self, text: str) -> tuple[str, bool]:
        """Add the next piece of text.

        Returns:
            The text to show now, and True once a stop string was found. No text is shown after a
            stop string.
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
        """Return the text that is held back, to show when generation ends without a stop string."""
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
        # Breadth first, because the suffix of a state is shorter and must be linked before.
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
