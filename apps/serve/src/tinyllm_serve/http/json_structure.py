"""Bounds on the structure of JSON text, checked before the text is parsed.

A parsed value takes up to 200 bytes, and its text can be 3 bytes. The bounds limit the memory and
the time of parsing and validation, which the length of the text alone does not.
"""

import re
from dataclasses import dataclass

MAX_DEPTH = 64
"""The deepest nesting of arrays and objects. Deeper values exceed the stack of some libraries."""

# A text without an end is one string up to the end, so that each byte is read once. `*+` and `++`
# keep no positions to go back to.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class StructureError(ValueError):
    """A JSON text exceeds a bound. The message says what was expected."""


@dataclass(frozen=True)
class JsonBounds:
    """The largest structure of a JSON text, which also has at most `MAX_DEPTH` levels.

    Attributes:
        values: the most items of arrays and objects.
        containers: the most arrays and objects.
        strings: the most strings, names of fields included.
    """

    values: int
    containers: int = 1 << 16
    strings: int = 1 << 18

    def check(self, text: bytes | bytearray) -> None:
        """Check the structure of a text. A text that is not JSON may pass.

        Raises:
            StructureError: if a bound is exceeded.
        """
        opened = text.count(b"[") + text.count(b"{")
        if (
            opened <= min(MAX_DEPTH, self.containers)
            and text.count(b'"') <= self.strings
            and text.count(b",") + opened <= self.values
        ):
            return  # even if no bracket and no comma is inside a string
        self._check_outside_strings(text)

    def _check_outside_strings(self, text: bytes | bytearray) -> None:
        """Count brackets and commas outside of strings, and stop at the first bound exceeded."""
        strings = containers = commas = depth = end = 0
        while True:
            start = text.find(b'"', end)
            between = text[end : start if start >= 0 else len(text)]
            commas += between.count(b",")
            containers += between.count(b"[") + between.count(b"{")
            if containers > self.containers:
                raise StructureError(f"expected at most {self.containers:,} arrays and objects")
            if commas + containers > self.values:
                raise StructureError(f"expected at most {self.values:,} values")
            for bracket in between.translate(None, _NOT_BRACKETS):
                depth += 1 if bracket in b"[{" else -1
                if depth > MAX_DEPTH:
                    raise StructureError(
                        f"expected at most {MAX_DEPTH} levels of arrays and objects"
                    )
            if start < 0:
                return
            strings += 1
            if strings > self.strings:
                raise StructureError(f"expected at most {self.strings:,} strings")
            string = _STRING.match(text, start)
            end = len(text) if string is None else string.end()
