"""A parser that separates reasoning from the answer while text is generated."""

from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class Segment:
    """A piece of text that is either reasoning or answer.

    Attributes:
        text: the text to show.
        thinking: True for reasoning, False for the answer.
    """

    text: str
    thinking: bool


class ReasoningParser:
    """A parser that splits a text into `<think>...</think>` at its start, and the answer.

    Only one pair of tags before the answer is parsed. A `<think>` within the answer is text of the
    answer. White space around the tags belongs neither to the reasoning nor to the answer. The
    result does not depend on the division of the text into pieces.
    """

    def __init__(self, *, opened: bool = False) -> None:
        """Start an empty text.

        Args:
            opened: True if the prompt ends with `<think>`, as some templates do.
        """
        self._tag: str | None = CLOSE if opened else OPEN  # the next tag; None within the answer
        self._held = ""
        self._begun = False  # True once the current kind of text has a character

    @property
    def thinking(self) -> bool:
        """True between the tags: after `<think>`, and until `</think>` is complete."""
        return self._tag == CLOSE

    def push(self, text: str) -> list[Segment]:
        """Add the next piece of text, and return the segments that can be shown now."""
        self._held += text
        segments: list[Segment] = []
        if self._tag == OPEN:
            start = self._held.lstrip()
            if start.startswith(OPEN):
                self._tag, self._held = CLOSE, start[len(OPEN) :]
            elif not OPEN.startswith(start):
                self._tag = None
                self._begun = True  # without reasoning, leading white space is text of the answer
            else:
                return []
        if self.thinking:
            thought, closed, rest = self._held.partition(CLOSE)
            if closed:
                segments += self._segment(thought.rstrip(), thinking=True)
                self._tag, self._held, self._begun = None, rest, False
            else:
                certain = len(self._held) - undecided(self._held, CLOSE)
                thought, self._held = self._held[:certain], self._held[certain:]
                return self._segment(thought, thinking=True)
        rest, self._held = self._held, ""
        return segments + self._segment(rest, thinking=False)

    def finish(self) -> list[Segment]:
        """End the text, and return the text that was held back."""
        rest, self._held = self._held, ""
        self._begun |= self._tag == OPEN  # without reasoning, white space is text of the answer
        return self._segment(rest.rstrip() if self.thinking else rest, thinking=self.thinking)

    def _segment(self, text: str, *, thinking: bool) -> list[Segment]:
        """Return the text as a segment, without white space at the start of its kind of text."""
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        return [Segment(text, thinking)] if text else []


def undecided(text: str, tag: str) -> int:
    """Count the characters at the end of a text that may be the start of `tag`.

    White space before the tag counts as well.
    """
    matched = next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)
    before = text[: len(text) - matched]
    return matched + len(before) - len(before.rstrip())
