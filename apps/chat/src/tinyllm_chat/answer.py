"""The answer to a question, and its text in progress."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tinyllm_qwen import Stats
from tinyllm_qwen.text.reasoning import Segment

Progress = Callable[[int, int], None]
"""A callback with two arguments: the work done so far and the total work."""

ShowSegment = Callable[[Segment], None]
"""A callback for each new segment of the reasoning or the answer."""

AnswerFinishReason = Literal["stop", "length", "interrupted"]
"""The finish reasons that `chat` itself gives."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one question.

    Attributes:
        text: the answer.
        reasoning: the reasoning before the answer; empty if there is none.
        finish_reason: "stop" after an end token or a stop string, "length" at the token limit,
            "interrupted" if the user stopped the answer, and any other reason that a server gives,
            such as "content_filter".
        stats: counts and times; None if the user stopped the answer before its first token.
        seed: the seed of the random numbers.
        dropped_turns: the number of oldest turns dropped to make room for this question and answer.
    """

    text: str
    reasoning: str
    finish_reason: AnswerFinishReason | str
    stats: Stats | None
    seed: int
    dropped_turns: int = 0


class AnswerCollector:
    """Shows each segment of an answer in progress, and stores its text.

    Attributes:
        text: the answer so far.
        reasoning: the reasoning so far.
    """

    def __init__(self, show: ShowSegment) -> None:
        """Start an answer.

        Args:
            show: called with each segment.
        """
        self.text = self.reasoning = ""
        self._show = show

    def add(self, *segments: Segment) -> None:
        """Show and store segments."""
        for segment in segments:
            if segment.thinking:
                self.reasoning += segment.text
            else:
                self.text += segment.text
            self._show(segment)
