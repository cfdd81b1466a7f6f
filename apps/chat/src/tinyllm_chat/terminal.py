"""Where text goes: the answer to stdout, everything else to stderr."""

import io
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from tinyllm_chat.word_wrap import WordWrap

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"

# What a model says is not to move the cursor or rename the window: control characters other than
# the line feed and the tab are shown as pictures of themselves (U+2400 and on).
_PICTURES: dict[int, int | None] = {code: 0x2400 + code for code in range(0x20)}
_PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_PICTURES |= {ord("\n"): ord("\n"), ord("\t"): ord("\t"), ord("\r"): None}


class Terminal:
    """The two streams, which may be terminals, files or pipes.

    Attributes:
        out: for answers alone.
        err: for everything else.
        animated: whether `err` is a terminal that can redraw a line.
    """

    def __init__(self, out: TextIO, err: TextIO, environ: Mapping[str, str]) -> None:
        """Look at the streams.

        Args:
            out: for answers.
            err: for everything else.
            environ: NO_COLOR (any text but none) and TERM are read.
        """
        self.out = out
        self.err = err
        self.animated = err.isatty() and environ.get("TERM") != "dumb"
        self._color = self.animated and not environ.get("NO_COLOR")
        self._unfinished: TextIO | None = None
        self._wrap = WordWrap()  # of the line under way

    @classmethod
    def standard(cls) -> "Terminal":
        """The process's own streams; characters that their encoding lacks become "?"."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        return cls(sys.stdout, sys.stderr, os.environ)

    def answer(self, text: str) -> None:
        """Write a piece of an answer."""
        if self._unfinished is self.err:
            self.finish_line()
        self._write(self.out, text)

    def thought(self, text: str) -> None:
        """Write a piece of thinking: dim, on stderr."""
        self._write(self.err, text, dim=True)

    def notice(self, text: str) -> None:
        """Write a line that the user should read."""
        self.finish_line()
        self._write(self.err, f"chat: {text}\n")

    def aside(self, text: str) -> None:
        """Write lines that the user may read: dim."""
        self.finish_line()
        self._write(self.err, f"{text}\n", dim=True)

    def finish_line(self) -> None:
        """Begin a new line, unless the cursor is at the beginning of one."""
        if self._unfinished is not None:
            self._write(self._unfinished, "\n", dim=self._unfinished is self.err)

    def _write(self, stream: TextIO, text: str, *, dim: bool = False) -> None:
        if not text:
            return
        unfinished = None if text.endswith("\n") else stream
        if stream.isatty():
            text = text.translate(_PICTURES)
            if columns := _columns(stream):
                text = self._wrap.push(text, columns)
        if text:
            stream.write(f"{_DIM}{text}{_PLAIN}" if dim and self._color else text)
            stream.flush()
        self._unfinished = unfinished


def _columns(stream: TextIO) -> int:
    """The width of a terminal, 0 where it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return 0
