"""Exit codes, errors on one line, and messages on stderr, of every program of tinyllm."""

import contextlib
import os
import sys

FAILURE, USAGE, INTERRUPTED = 1, 2, 130


class UsageError(ValueError):
    """An option or its value is not allowed. The message names the allowed values. Exit code 2."""


def one_line(error: object) -> str:
    """Return the message of an error on one line, without control characters."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    text = "; ".join(lines).replace(":; ", ": ") or type(error).__name__
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def notice(text: str, program: str = "tinyllm") -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"{program}: {' '.join(text.split())}\n")


def drop_output() -> None:
    """Write to the null device. Python flushes both streams at exit, which would raise again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a stream in memory has no descriptor
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
