"""Separate reasoning from the answer, in text that comes in pieces."""

from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class Segment:
    """A piece of text of one kind.

    Attributes:
        text: the text to show.
        thinking: True for reasoning, False for the answer.
    """

    text: str
    thinking: bool


class ReasoningParser:
    """A parser that splits `<think>...</think>` at the beginning of an answer from the rest.

    Only one pair of tags before the answer counts: a `<think>` within the answer is part of it.
    Blank lines and spaces around the tags belong to neither part. The result does not depend on the
    division of the text into pieces.
    """

    def __init__(self, *, opened: bool = False) -> None:
        """Start a text.

        Args:
            opened: True if the prompt has opened the reasoning already, as some templates do.
        """
        self._tag: str | None = CLOSE if opened else OPEN
        self._held = ""
        self._begun = False

    def push(self, text: str) -> list[Segment]:
        """Take the next piece, and return the segments that it completes."""
        self._held += text
        segments: list[Segment] = []
        if self._tag == OPEN:
            start = self._held.lstrip()
            if start.startswith(OPEN):
                self._tag, self._held = CLOSE, start[len(OPEN) :]
            elif not OPEN.startswith(start):
                self._tag = None
                self._begun = True  # an answer without thinking is shown as it is
            else:
                return []
        if self._tag == CLOSE:
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
        """Return the text that was held back, at the end of the answer."""
        rest, self._held = self._held, ""
        thinking = self._tag == CLOSE
        return self._segment(rest.rstrip() if thinking else rest, thinking=thinking)

    def _segment(self, text: str, *, thinking: bool) -> list[Segment]:
        """Return the text as a segment, less the space before the first word of its part."""
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        return [Segment(text, thinking)] if text else []


def undecided(text: str, tag: str) -> int:
    """Count the characters at the end of a text that may be the beginning of `tag`.

    White space before the tag counts as well.
    """
    part = next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)
    before = text[: len(text) - part]
    return part + len(before) - len(before.rstrip())
