"""Calls of functions told from text, in Qwen's format and in text that comes in pieces."""

import json
from collections.abc import Collection

from tinyllm_qwen.text.reasoning import undecided

from tinyllm_serve.parts import Content, Part, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class ToolCallParser:
    """Finds `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` in an answer.

    A call is given when its end has been seen, whole: until then nobody knows whether it is one.
    What is not (no JSON, no such function, no end) stays text, to the letter. White space around
    calls belongs to nobody. How the text is cut into pieces changes nothing.

    Attributes:
        found: how many calls there were.
    """

    def __init__(self, functions: Collection[str]) -> None:
        """Start a text.

        Args:
            functions: names of those that may be called.
        """
        self.found = 0
        self._functions = frozenset(functions)
        self._held = ""
        self._after_call = False

    def push(self, text: str) -> list[Part]:
        """Take the next piece, and give what it makes certain."""
        self._held += text
        parts: list[Part] = []
        while True:
            before, opened, rest = self._held.partition(OPEN)
            if not opened:
                certain = len(before) - undecided(before, OPEN)
                parts += self._content(before[:certain])
                self._held = before[certain:]
                return parts
            body, closed, after = rest.partition(CLOSE)
            if not closed:
                certain = len(before.rstrip())
                parts += self._content(before[:certain])
                self._held = self._held[certain:]
                return parts
            call = self._call(body)
            if call is None:
                parts += self._content(before + OPEN)
                self._held = rest
            else:
                parts += [*self._content(before.rstrip()), call]
                self.found += 1
                self._held, self._after_call = after, True

    def finish(self) -> list[Part]:
        """What was held back, at the end of the text."""
        rest, self._held = self._held, ""
        return self._content(rest)

    def _content(self, text: str) -> list[Part]:
        """Text as a part, less the white space between it and the call before."""
        if self._after_call:
            text = text.lstrip()
        if not text:
            return []
        self._after_call = False
        return [Content(text)]

    def _call(self, body: str) -> ToolCall | None:
        """The call that a body describes, if it does."""
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
