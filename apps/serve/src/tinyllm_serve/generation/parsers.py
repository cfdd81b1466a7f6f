"""Parsers of generated text: reasoning, content and function calls, while the text streams."""

from collections.abc import Sequence

from tinyllm_qwen.text.reasoning import ReasoningParser, Segment

from tinyllm_serve.generation.parameter_types import FunctionSchemas
from tinyllm_serve.generation.parts import Content, Part, Reasoning
from tinyllm_serve.generation.prompt import CallFormat
from tinyllm_serve.generation.tool_calls import ToolCallParser
from tinyllm_serve.generation.xml_tool_calls import XmlToolCallParser


class PlainText:
    """The parser of plain completions: all text is content."""

    thinking = False

    def push(self, text: str) -> Sequence[Part]:
        """Return the text as content."""
        return [Content(text)] if text else []

    def finish(self) -> Sequence[Part]:
        """Return nothing, because no text is held back."""
        return []


class AnswerParser:
    """The parser of chat answers: reasoning, content and function calls."""

    def __init__(
        self,
        *,
        opened: bool = False,
        functions: FunctionSchemas | None = None,
        call_format: CallFormat = "json",
    ) -> None:
        """Start an answer.

        Args:
            opened: True if the prompt has opened the reasoning already.
            functions: the functions that may be called; shared by the answers of a request.
                Without functions, calls stay text.
            call_format: the format in which the model writes calls.
        """
        self._reasoning = ReasoningParser(opened=opened)
        self._calls: ToolCallParser | None = None
        if functions is not None and functions.schemas:
            xml = call_format == "xml"
            self._calls = XmlToolCallParser(functions) if xml else ToolCallParser(functions.schemas)

    @property
    def thinking(self) -> bool:
        """True after the tag that opens the reasoning, until the tag that closes it."""
        return self._reasoning.thinking

    def push(self, text: str) -> list[Part]:
        """Take the next piece of text, and return the parts that are certain now."""
        return self._parts(self._reasoning.push(text))

    def finish(self) -> list[Part]:
        """Return the parts that were held back, at the end of the answer."""
        parts = self._parts(self._reasoning.finish())
        return [*parts, *self._calls.finish()] if self._calls else parts

    def _parts(self, segments: list[Segment]) -> list[Part]:
        parts: list[Part] = []
        for segment in segments:
            if segment.thinking:
                parts.append(Reasoning(segment.text))
            elif self._calls:
                parts += self._calls.push(segment.text)
            else:
                parts.append(Content(segment.text))
        return parts


Parser = PlainText | AnswerParser
"""A parser of one answer. The result does not depend on how the text is cut into pieces."""
