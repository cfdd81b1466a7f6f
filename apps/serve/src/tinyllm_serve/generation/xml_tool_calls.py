"""The parser of function calls in Qwen3.5's XML format, while the text streams."""

import json
import re
from collections.abc import Iterator

from tinyllm_serve.generation.parameter_types import (
    FunctionSchemas,
    ParameterTypes,
    value_of,
)
from tinyllm_serve.generation.parts import CallArguments, CallEnd, CallStart, Part
from tinyllm_serve.generation.tool_calls import CALL_CLOSE, CALL_OPEN, MAX_HEAD, ToolCallParser

_ESCAPED = re.compile(r"\\.", re.DOTALL)

FUNCTION_OPEN, FUNCTION_CLOSE = "<function=", "</function>"
PARAMETER_OPEN, PARAMETER_CLOSE = "<parameter=", "</parameter>"


class XmlToolCallParser(ToolCallParser):
    """The parser of calls that Qwen3-Coder and Qwen3.5 write.

    A call has this form:

        <tool_call>
        <function=weather>
        <parameter=city>
        Bern
        </parameter>
        </function>
        </tool_call>

    A value is text without quotes, between line breaks. The result is a JSON object. The schema of
    the function decides whether a value is text or JSON: `0` is the text "0" or the number. Text is
    returned as the model writes it, other values once they are complete. A value that does not
    have a type of the schema becomes text, so that the arguments are always valid JSON. So does a
    value that the schema lists as text.

    A call begins once its name is known to be a function of the request. Text between parameters
    is dropped.
    """

    def __init__(self, functions: FunctionSchemas) -> None:
        """Start a text, with the functions that may be called."""
        super().__init__(functions.schemas)
        self._schemas = functions
        self._function = ""  # of the current call
        self._types = ParameterTypes()  # of the current parameter
        self._has_arguments = False  # True once the current call has a parameter
        self._value_started = False
        # Of a JSON value: where the count of its quotes ends, and if a string is open there.
        self._counted, self._in_string = 0, False

    def finish(self) -> list[Part]:
        """Return the text that was held back, at the end of the answer."""
        if self._read == self._read_text:
            rest, self._held = self._held, ""
            return [CallArguments(_escaped(rest))] if rest else []
        if self._read in (self._read_parameter, self._read_value):
            self._held = ""  # an incomplete tag, or a value that is not known to be JSON
            return []
        return super().finish()

    def _read_head(self) -> Iterator[Part | None]:
        """Read a call from its opening tag to the name of the function."""
        self._cut()  # the methods of this class read from the start of the held text
        start = self._held.index(CALL_OPEN) + len(CALL_OPEN)
        text = self._held[start : start + MAX_HEAD].lstrip()
        position = self._held.find(">", self._held.find("<", start))
        if text.startswith(FUNCTION_OPEN) and ">" in text:
            name = text[len(FUNCTION_OPEN) : text.index(">")]
            if name in self._functions:
                self._held = self._held[position + 1 :]
                self._function, self._has_arguments = name, False
                self._after_call = True
                self._read = self._read_parameter
                yield CallStart(name)
                yield CallArguments("{")
                return
            yield from self._give_up(start)
        elif _may_become(text, FUNCTION_OPEN) and len(self._held) - start < MAX_HEAD:
            yield None
        else:
            yield from self._give_up(start)

    def _read_parameter(self) -> Iterator[Part | None]:
        """Read up to a parameter or the end of the call, and drop other text."""
        tags = (PARAMETER_OPEN, FUNCTION_CLOSE, CALL_CLOSE)
        found = [(position, tag) for tag in tags if (position := self._held.find(tag)) >= 0]
        if not found:
            self._held = self._held[-max(map(len, tags)) + 1 :]
            yield None
            return
        position, tag = min(found)
        if tag != PARAMETER_OPEN:
            self._held = self._held[position:].removeprefix(FUNCTION_CLOSE)
            self._closed = True  # for `_read_end`: no brace follows
            self._read = self._read_end
            yield CallArguments("}")
            yield CallEnd()
            return
        self._held = self._held[position:]
        end = self._held.find(">", 0, MAX_HEAD)
        if end < 0:
            if len(self._held) < MAX_HEAD:
                yield None
            else:
                self._held = self._held[len(PARAMETER_OPEN) :]
            return
        name = self._held[len(PARAMETER_OPEN) : end]
        self._held = self._held[end + 1 :]
        self._types = self._schemas.parameter_types(self._function, name)
        self._value_started = self._in_string = False
        self._searched = self._counted = 0
        separator = ", " if self._has_arguments else ""
        self._has_arguments = True
        if self._types.types <= {"string"}:
            self._read = self._read_text
            yield CallArguments(f'{separator}{json.dumps(name)}: "')
        else:
            # The value decides about its quotes, so that its name waits for it.
            self._name = f"{separator}{json.dumps(name)}: "
            self._read = self._read_value

    def _read_text(self) -> Iterator[Part | None]:
        """Read a text as it is written."""
        if not self._value_started:
            if not self._held:
                yield None
                return
            self._held = self._held.removeprefix("\n")
            self._value_started = True
        text, closed, rest = self._held.partition(PARAMETER_CLOSE)
        if closed:
            self._held, self._read = rest, self._read_parameter
            yield CallArguments(_escaped(text.removesuffix("\n")) + '"')
            return
        certain = len(text) - _undecided(text)
        self._held = text[certain:]
        if certain:
            yield CallArguments(_escaped(text[:certain]))
        yield None

    def _read_value(self) -> Iterator[Part | None]:
        """Read a value that is not only text, once it is complete."""
        while (closing := self._held.find(PARAMETER_CLOSE, self._searched)) >= 0:
            # A string of JSON may contain the tag, but no line break before it.
            piece = self._held[self._counted : closing]
            self._in_string ^= _ESCAPED.sub("", piece).count('"') % 2 == 1
            self._counted = closing
            if not self._in_string or self._held[closing - 1 : closing] == "\n":
                break
            self._searched = closing + 1
        if closing < 0:
            self._searched = max(self._searched, len(self._held) - len(PARAMETER_CLOSE) + 1)
            yield None
            return
        text = self._held[:closing].removeprefix("\n").removesuffix("\n")
        self._held = self._held[closing + len(PARAMETER_CLOSE) :]
        self._read = self._read_parameter
        yield CallArguments(self._name + value_of(text, self._types))


def _escaped(text: str) -> str:
    """Return a text as a part of a JSON string.

    The text has no half of a surrogate pair, so that its characters can be escaped one by one.
    """
    return json.dumps(text)[1:-1]


def _may_become(text: str, tag: str) -> bool:
    """Return True if more text may turn `text`, without a complete name, into the tag with one."""
    return tag.startswith(text) or text.startswith(tag)


def _undecided(text: str) -> int:
    """Count the characters at the end that may be the line break and tag after a value."""
    tags = (f"\n{PARAMETER_CLOSE}", PARAMETER_CLOSE)
    starts = (tag[:size] for tag in tags for size in range(len(tag) - 1, 0, -1))
    return next((len(start) for start in starts if text.endswith(start)), 0)
