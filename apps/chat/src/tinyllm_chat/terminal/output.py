"""Output: answers go to stdout, everything else to stderr."""

import os
import sys
from collections.abc import Mapping
from typing import TextIO

from tinyllm_chat.terminal.word_wrap import WordWrap

_DIM, _RESET = "\x1b[2m", "\x1b[0m"

# The output of a model must not move the cursor or rename the window. Control characters other than
# line feed and tab are replaced with their printable pictures (U+2400 and on).
_CONTROL_PICTURES: dict[int, int | None] = {code: 0x2400 + code for code in range(0x20)}
_CONTROL_PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_CONTROL_PICTURES |= {ord("\n"): ord("\n"), ord("\t"): ord("\t"), ord("\r"): None}


class Terminal:
    """The two output streams, which may be terminals, files or pipes.

    Attributes:
        out: the stream of answers.
        err: the stream of everything else.
        animated: True if `err` is a terminal that can redraw a line.
    """

    def __init__(self, out: TextIO, err: TextIO, environ: Mapping[str, str]) -> None:
        """Inspect the streams.

        Args:
            out: the stream of answers.
            err: the stream of everything else.
            environ: the environment. A non-empty NO_COLOR, or TERM=dumb, turns colors off.
        """
        self.out = out
        self.err = err
        self.animated = err.isatty() and environ.get("TERM") != "dumb"
        self._color = self.animated and not environ.get("NO_COLOR")
        self._unfinished: TextIO | None = None
        self._wrap = WordWrap()  # the state of the current line

    @classmethod
    def standard(cls) -> "Terminal":
        """Return a terminal on stdout and stderr."""
        return cls(sys.stdout, sys.stderr, os.environ)

    def answer(self, text: str) -> None:
        """Write a piece of an answer to stdout."""
        if self._unfinished is self.err:
            self.finish_line()
        self._write(self.out, text)

    def reasoning(self, text: str) -> None:
        """Write a piece of reasoning to stderr, dim."""
        self._write(self.err, text, dim=True)

    def notice(self, text: str) -> None:
        """Write an important line to stderr."""
        self.finish_line()
        self._write(self.err, f"chat: {text}\n")

    def info(self, text: str) -> None:
        """Write additional lines to stderr, dim."""
        self.finish_line()
        self._write(self.err, f"{text}\n", dim=True)

    def finish_line(self) -> None:
        """Begin a new line, unless the cursor is at the beginning of a line."""
        if self._unfinished is not None:
            self._write(self._unfinished, "\n", dim=self._unfinished is self.err)

    def _write(self, stream: TextIO, text: str, *, dim: bool = False) -> None:
        if not text:
            return
        unfinished = None if text.endswith("\n") else stream
        if stream.isatty():
            text = text.translate(_CONTROL_PICTURES)
            if columns := _columns(stream):
                text = self._wrap.push(text, columns)
        if text:
            stream.write(f"{_DIM}{text}{_RESET}" if dim and self._color else text)
            stream.flush()
        self._unfinished = unfinished


def _columns(stream: TextIO) -> int:
    """Return the width of a terminal, or 0 if it is unknown."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return 0
