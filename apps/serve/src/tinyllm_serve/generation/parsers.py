"""Parsers of generated text: reasoning, content and function calls, while the text streams."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from secrets import token_hex

from tinyllm_qwen.text.reasoning import ReasoningParser, Segment, undecided

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Reasoning:
    """A piece of the reasoning before the answer."""

    text: str


@dataclass(frozen=True)
class Content:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class ToolCall:
    """A complete function call.

    Attributes:
        name: the function's name.
        arguments: a JSON object, as text.
        id: the id under which the client returns the result.
    """

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{token_hex(12)}", compare=False)


Part = Reasoning | Content | ToolCall


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
    """The parser of chat answers: reasoning, content and function calls.

    Attributes:
        thinking: True if the latest text belonged to the reasoning.
    """

    def __init__(self, *, opened: bool = False, functions: Collection[str] = ()) -> None:
        """Start an answer.

        Args:
            opened: True if the prompt has opened the reasoning already.
            functions: names of the functions that may be called. If empty, calls stay text.
        """
        self.thinking = opened
        self._reasoning = ReasoningParser(opened=opened)
        self._calls = ToolCallParser(functions) if functions else None

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
            self.thinking = segment.thinking
            if segment.thinking:
                parts.append(Reasoning(segment.text))
            elif self._calls:
                parts += self._calls.push(segment.text)
            else:
                parts.append(Content(segment.text))
        return parts


Parser = PlainText | AnswerParser
"""A parser of one answer. The result does not depend on how the text is cut into pieces."""


class ToolCallParser:
    """The parser of calls in Qwen's format.

    A call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. It is returned whole, once
    its end has been seen. Text between the tags that is no call (no JSON, or an unknown function)
    stays content, unchanged. A call without an end stays content too. White space around calls is
    dropped.
    """

    def __init__(self, functions: Collection[str]) -> None:
        """Start a text, with the names of the functions that may be called."""
        self._functions = frozenset(functions)
        self._held = ""
        self._after_call = False

    def push(self, text: str) -> list[Part]:
        """Take the next piece of text, and return the parts that are certain now."""
        self._held += text
        parts: list[Part] = []
        while True:
            before, opened, rest = self._held.partition(CALL_OPEN)
            if not opened:
                certain = len(before) - undecided(before, CALL_OPEN)
                parts += self._content(before[:certain])
                self._held = before[certain:]
                return parts
            body, closed, after = rest.partition(CALL_CLOSE)
            if not closed:
                certain = len(before.rstrip())
                parts += self._content(before[:certain])
                self._held = self._held[certain:]
                return parts
            call = self._call(body)
            if call is None:
                parts += self._content(before + CALL_OPEN)
                self._held = rest
            else:
                parts += [*self._content(before.rstrip()), call]
                self._held, self._after_call = after, True

    def finish(self) -> list[Part]:
        """Return the text that was held back, at the end of the answer."""
        rest, self._held = self._held, ""
        return self._content(rest)

    def _content(self, text: str) -> list[Part]:
        """Return text as a part, without white space between it and the call before it."""
        if self._after_call:
            text = text.lstrip()
        if not text:
            return []
        self._after_call = False
        return [Content(text)]

    def _call(self, body: str) -> ToolCall | None:
        """Return the call between two tags, or None if the text is no call."""
        try:
            call = json.loads(body)
        except (ValueError, RecursionError):
            return None
        if not isinstance(call, dict) or call.keys() != {"name", "arguments"}:
            return None
        name, arguments = call["name"], call["arguments"]
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        if name not in self._functions:
            return None
        return ToolCall(name, json.dumps(arguments, ensure_ascii=False))
