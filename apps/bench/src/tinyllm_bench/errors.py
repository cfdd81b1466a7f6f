"""Errors of a benchmark, and their text on one line."""


class UsageError(ValueError):
    """An option or its value is not allowed. The message names the allowed values. Exit code 2."""


class BenchError(ValueError):
    """A requested measurement cannot be made. The message gives the reason. Exit code 1."""


class PeerError(RuntimeError):
    """A peer failed during a measurement. The message gives the reason."""


def one_line(error: BaseException) -> str:
    """Return the message of an error on one line."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines).replace(":; ", ": ") or type(error).__name__
