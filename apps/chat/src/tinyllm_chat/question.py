"""The question of a one-shot: from the command line, from stdin, or both."""

from typing import Protocol, runtime_checkable

from tinyllm_chat.errors import ChatError, UsageError
from tinyllm_chat.terminal import Terminal

MAX_BYTES = 64_000_000
"""Of stdin: far beyond any context, and little enough to be read before it is refused."""


@runtime_checkable
class Source(Protocol):
    """Where bytes come from."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, fewer than `size` at the end alone."""
        ...


def read_question(argument: str | None, stdin: Source | None, terminal: Terminal) -> str:
    """The question of the command line and of stdin; of both, stdin's text after a blank line.

    Args:
        argument: what --prompt says, if it is there.
        stdin: None where it is a terminal, or closed.
        terminal: for a notice.

    Raises:
        UsageError: if there is nothing but space.
        ChatError: if stdin has more than 64 MB.
    """
    parts = [] if argument is None else [argument]
    if stdin is not None:
        parts.append(_read(stdin, terminal))
    question = "\n\n".join(part for part in parts if part.strip())
    if not question:
        raise UsageError("the prompt is empty: give --prompt TEXT, or text on stdin")
    return question


def _read(stdin: Source, terminal: Terminal) -> str:
    data = stdin.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ChatError(f"stdin: expected at most {MAX_BYTES:,} bytes, got more: shorten it")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        terminal.notice(
            f"stdin is not UTF-8 (byte {error.start}): what is not was replaced with U+FFFD"
        )
        text = data.decode(errors="replace")
    return text.removeprefix("\ufeff").rstrip("\r\n")
