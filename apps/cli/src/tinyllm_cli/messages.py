"""Exit codes, and messages on stderr."""

import sys

FAILURE, USAGE, INTERRUPTED = 1, 2, 130


def notice(text: str) -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"tinyllm: {' '.join(text.split())}\n")
