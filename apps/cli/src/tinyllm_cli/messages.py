"""Exit codes, and messages on stderr."""

import sys

FAILURE, USAGE, INTERRUPTED = 1, 2, 130


def notice(text: str) -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"tinyllm: {' '.join(text.split())}\n")


def size(nbytes: int) -> str:
    """Return a number of bytes in GB, MB or kB."""
    for unit, name in ((10**9, "GB"), (10**6, "MB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes / 1e3:.1f} kB"
