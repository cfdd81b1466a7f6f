"""A search for stop strings in a text while it is generated."""

from array import array
from collections.abc import Sequence
from weakref import WeakValueDictionary


class StopStrings:
    """A search for the first of several stop strings, in text that is added in pieces.

    The first stop string is the one that is complete first, and no character of it is shown. If
    several stop strings are complete at the same character, the longest counts, so that the shown
    text contains no character of any of them. The result does not depend on the division of the
    text into pieces.

    A character takes amortized constant time for any number of stop strings. Searches for the same
    stop strings share one automaton, which is made when the first text is added.

    Attributes:
        found: the stop string that was found; None before.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Start an empty text. If `stops` is empty, all text is shown.

        Raises:
            ValueError: if a stop string is empty, or `stops` is itself a string.
        """
        if isinstance(stops, str):
            raise ValueError(f"stop strings: expected a list of them, got the string {stops!r}")
        if "" in stops:
            raise ValueError(f"stop strings: expected at least one character in each, got {stops}")
        self._stops = tuple(stops)
        self._automaton: _Automaton | None = None
        self._state = 0
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Add the next piece of text.

        Returns:
            The text to show now, and True once a stop string was found. No text is shown after a
            stop string.
        """
        if self.found is not None:
            return "", True
        if self._automaton is None:
            self._automaton = _automaton(self._stops)
        automaton, state = self._automaton, self._state
        for position, character in enumerate(text):
            state = automaton.step(state, character)
            match = automaton.match[state]
            if match:
                whole, end = self._held + text, len(self._held) + position + 1
                self._held, self.found = "", whole[end - match : end]
                return whole[: end - match], True
        text = self._held + text
        end = len(text) - automaton.length[state]
        self._state, self._held = state, text[end:]
        return text[:end], False

    def flush(self) -> str:
        """Return the text that is held back, to show when generation ends without a stop string."""
        held, self._held, self._state = self._held, "", 0
        return held


class _Automaton:
    """The automaton of Aho and Corasick (1975) for some stop strings. It does not change.

    Each state is a text, the start of a stop string: the longest end of the text so far, which is
    the text to hold back. State 0 is the empty text. A state takes 120 bytes.

    Attributes:
        length: the number of characters of each state.
        match: the length of the longest stop string at the end of each state; 0 for none.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: dict[int, int] = {}  # the next state, by state and character
        self._suffix = array("i", [0])  # the longest proper suffix of the text that is a state too
        self.length = array("i", [0])
        self.match = array("i", [0])
        edges = [edge for stop in stops for edge in self._add(stop)]
        # Shorter states first, because the suffix of a state is shorter and must be linked before.
        edges.sort(key=lambda edge: self.length[edge[2]])
        for state, character, child in edges:
            if state:
                self._suffix[child] = self.step(self._suffix[state], character)
            self.match[child] = self.match[child] or self.match[self._suffix[child]]

    def step(self, state: int, character: str) -> int:
        """Return the state after one more character."""
        code = ord(character)
        while (child := self._next.get(state << 21 | code)) is None:
            if not state:
                return 0
            state = self._suffix[state]
        return child

    def _add(self, stop: str) -> list[tuple[int, str, int]]:
        """Add the states of a stop string; return the new edges: state, character, next state."""
        state, edges = 0, []
        for character in stop:
            key = state << 21 | ord(character)
            if key not in self._next:
                self._next[key] = len(self.length)
                edges.append((state, character, len(self.length)))
                self.length.append(self.length[state] + 1)
                self._suffix.append(0)
                self.match.append(0)
            state = self._next[key]
        self.match[state] = len(stop)
        return edges


_automata: WeakValueDictionary[tuple[str, ...], _Automaton] = WeakValueDictionary()


def _automaton(stops: tuple[str, ...]) -> _Automaton:
    """Return the automaton of some stop strings, which all running searches share."""
    automaton = _automata.get(stops)
    if automaton is None:
        automaton = _automata[stops] = _Automaton(stops)
    return automaton
