"""An answer taken apart while it is generated."""

from collections.abc import Collection

from tinyllm_qwen.text.reasoning import ReasoningParser, Segment

from tinyllm_serve.parts import Content, Part, Reasoning
from tinyllm_serve.tool_call_parser import ToolCallParser


class AnswerParser:
    """Tells thinking, text and calls of functions apart.

    Attributes:
        thinking: whether the latest text belonged to the thinking.
    """

    def __init__(self, *, opened: bool = False, functions: Collection[str] = ()) -> None:
        """Start an answer.

        Args:
            opened: whether the prompt has opened the thinking already.
            functions: names of those that may be called; without any, nothing is taken for a call.
        """
        self.thinking = opened
        self._thoughts = ReasoningParser(opened=opened)
        self._calls = ToolCallParser(functions) if functions else None

    @property
    def calls(self) -> int:
        """How many functions were called."""
        return self._calls.found if self._calls else 0

    def push(self, text: str) -> list[Part]:
        """Take the next piece, and give what it makes certain."""
        return self._sort(self._thoughts.push(text))

    def finish(self) -> list[Part]:
        """What was held back, at the end of the answer."""
        parts = self._sort(self._thoughts.finish())
        return [*parts, *self._calls.finish()] if self._calls else parts

    def _sort(self, segments: list[Segment]) -> list[Part]:
        parts: list[Part] = []
        for segment in segments:
            self.thinking = segment.thinking
            if segment.thinking:
                parts.append(Reasoning(segment.text))
            elif self._calls:
                parts += self._calls.push(segment.text)
            else:
                parts.append(Content(segment.text))
        return parts
