"""The parser of function calls in generated text, while the text streams."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence

from tinyllm_qwen.text.reasoning import undecided

from tinyllm_serve.generation.parts import CallArguments, CallEnd, CallStart, Content, Part

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

MAX_HEAD = 4096
"""The most characters of a call before its arguments. A name of 256 escaped characters has 1,536.

The head is read again with each token. Without a limit, an answer of white space would take time in
proportion to its length squared.
"""

_HEAD = ("{", "name", ":", None, ",", "arguments", ":", "{")
"""The JSON of a call up to its arguments: see `_read_marks`."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NESTED = re.compile(r'<tool_call>[ \t\n\r]*\{[ \t\n\r]*"[a\\]')
"""An opening tag and the beginning of `{"arguments"` after it, where `a` may be escaped.

No JSON value continues over this text: the tag is not JSON, and if it is inside a string, then the
string ends before the last character, which cannot follow a string.
"""
_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING_STRUCTURE = re.compile(r'["\\]')


class ToolCallParser:
    """The parser of calls in Qwen's format.

    A call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. It begins once its name is
    known to be a function of the request, and its arguments have begun. From there on the arguments
    are returned as the model writes them, also if they turn out to be invalid JSON. Any other text
    is content, unchanged: text that does not begin like a call, and a call of an unknown function.
    White space around calls is dropped.
    """

    def __init__(self, functions: Collection[str]) -> None:
        """Start a text, with the names of the functions that may be called."""
        self._functions = frozenset(functions)
        self._held = ""
        self._start = 0  # position in the held text up to which it was read
        self._searched = 0  # position in the held text up to which there is no closing tag
        self._after_call = False
        self._closed = False  # True once the last brace of the current call was read
        self._arguments = _ArgumentsScanner()
        self._read: Callable[[], Iterator[Part | None]] = self._read_content

    def push(self, text: str) -> list[Part]:
        """Take the next piece of text, and return the parts that are certain now."""
        self._cut()
        self._held += text
        parts: list[Part] = []
        while True:
            for part in self._read():
                if part is None:  # needs more text
                    return parts
                parts.append(part)

    def finish(self) -> list[Part]:
        """Return the text that was held back, at the end of the answer."""
        rest, self._held, self._start = self._held[self._start :], "", 0
        if self._read == self._read_end:
            return []  # an unfinished closing tag of a complete call
        return [*self._content(rest)]

    def _read_content(self) -> Iterator[Part | None]:
        """Read text up to an opening tag, which stays held until the call is certain."""
        opening = self._held.find(CALL_OPEN, self._start)
        opened = opening >= 0
        before = self._held[self._start : opening if opened else None]
        certain = len(before.rstrip()) if opened else len(before) - undecided(before, CALL_OPEN)
        self._start += certain
        yield from self._content(before[:certain])
        if opened:
            self._read = self._read_head
        else:
            yield None

    def _read_head(self) -> Iterator[Part | None]:
        """Read a call from its opening tag to the start of its arguments."""
        start = self._held.index(CALL_OPEN, self._start) + len(CALL_OPEN)
        text = self._held[start : start + MAX_HEAD]
        head = _read_marks(text, _HEAD)
        values, size = head or ([], 0)
        if values[3:4] and values[3] not in self._functions:
            head = None
        elif len(values) == len(_HEAD):
            self._start = start + size - 1
            self._after_call, self._closed = True, False
            self._arguments = _ArgumentsScanner()
            self._read = self._read_arguments
            yield CallStart(values[3])
            return
        first, _ = _read_marks(text, ("{", "arguments")) or ([], 0)
        if head is None and len(first) == 2:
            self._searched = max(self._searched, start)
            self._read = self._read_body
        elif head is None or len(text) == MAX_HEAD:
            yield from self._give_up(start)
        else:
            yield None

    def _read_arguments(self) -> Iterator[Part | None]:
        """Read arguments up to their last brace."""
        start, self._start = self._start, self._arguments.scan(self._held, self._start)
        if start < self._start:
            yield CallArguments(self._held[start : self._start])
        if self._arguments.is_complete:
            self._read = self._read_end
            yield CallEnd()
        else:
            yield None

    def _read_end(self) -> Iterator[Part | None]:
        """Drop the end of a call after its arguments: the call's brace and the closing tag."""
        self._skip_space()
        if self._held.startswith("}", self._start) and not self._closed:
            self._closed = True
            self._start += 1
            self._skip_space()
        rest = self._held[self._start : self._start + len(CALL_CLOSE)]
        if CALL_CLOSE.startswith(rest) and rest != CALL_CLOSE:
            yield None
        else:
            self._start += len(CALL_CLOSE) if rest == CALL_CLOSE else 0
            self._read = self._read_content

    def _cut(self) -> None:
        """Drop the text that was read, once a push: a text of many tags is not copied for each."""
        self._held = self._held[self._start :]
        self._searched = max(0, self._searched - self._start)
        self._start = 0

    def _skip_space(self) -> None:
        while self._held[self._start : self._start + 1].isspace():
            self._start += 1

    def _read_body(self) -> Iterator[Part | None]:
        """Read a call whose arguments come before its name. It is returned whole."""
        start = self._held.index(CALL_OPEN, self._start) + len(CALL_OPEN)
        closing = self._held.find(CALL_CLOSE, self._searched)
        if closing < 0:
            self._searched = max(start, len(self._held) - len(CALL_CLOSE) + 1)
            yield None
            return
        self._searched = closing
        nested = _NESTED.search(self._held, start, closing)
        call = None if nested else self._call(self._held[start:closing])
        if call is None:
            yield from self._give_up(start)
            return
        self._start = closing + len(CALL_CLOSE)
        self._read, self._after_call = self._read_content, True
        yield from call

    def _give_up(self, start: int) -> Iterator[Part]:
        """Return the opening tag as content; the text after the tag is read again."""
        tag = self._held[self._start : start]
        self._start, self._read = start, self._read_content
        yield from self._content(tag)

    def _content(self, text: str) -> Iterator[Part]:
        """Yield text as a part, without white space between it and the call before it."""
        if self._after_call:
            text = text.lstrip()
        if text:
            self._after_call = False
            yield Content(text)

    def _call(self, body: str) -> list[Part] | None:
        """Return the call between two tags, or None if the text is no call."""
        try:
            call = json.loads(body)
            if not isinstance(call, dict) or call.keys() != {"name", "arguments"}:
                return None
            name, arguments = call["name"], call["arguments"]
            if name not in self._functions or not isinstance(arguments, dict):
                return None
            return [CallStart(name), CallArguments(json.dumps(arguments)), CallEnd()]
        except (ValueError, TypeError, RecursionError):
            return None


class _ArgumentsScanner:
    """A search for the end of a JSON object that is given in pieces.

    Attributes:
        is_complete: True once the object's last brace was found.
    """

    def __init__(self) -> None:
        """Start before the object's first brace."""
        self.is_complete = False
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the next character belongs to an escape sequence

    def scan(self, piece: str, start: int) -> int:
        """Read a piece from a start. Return the position up to which it belongs to the object."""
        position = start
        while position < len(piece):
            if self._escaped:
                self._escaped = False
                position += 1
            found = (_STRING_STRUCTURE if self._in_string else _STRUCTURE).search(piece, position)
            if found is None:
                break
            position = found.end()
            match found[0]:
                case '"':
                    self._in_string = not self._in_string
                case "\\":
                    self._escaped = True
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if not self._depth:
                        self.is_complete = True
                        return position
        return len(piece)


def _read_marks(text: str, marks: Sequence[str | None]) -> tuple[list[str], int] | None:
    """Read JSON that consists of some marks, with white space between them.

    A mark is a character, the value of a string, or None for a string of any value.

    Returns:
        The values and the number of characters read, or None if the text differs from the marks.
        Values are missing if the text is too short.
    """
    values: list[str] = []
    position = 0
    for mark in marks:
        rest = text[position:].lstrip(" \t\n\r")
        if not rest:
            break
        value, size = rest[0], 1
        if mark not in ("{", ":", ","):
            string = _STRING.match(rest)
            if string is None and value == '"':
                break
            written = string[0] if string else ""
            try:
                value, size = json.loads(written), len(written)
            except ValueError:
                return None
        if mark not in (None, value):
            return None
        values.append(value)
        position = len(text) - len(rest) + size
    return values, position
