"""Errors with a message for the user."""


class UsageError(ValueError):
    """An option or an option's value is not allowed. The exit code is 2."""


class ChatError(ValueError):
    """A request cannot be fulfilled. The exit code is 1."""


def one_line(error: BaseException) -> str:
    """Return the message of an error on one line."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines).replace(":; ", ": ") or type(error).__name__
