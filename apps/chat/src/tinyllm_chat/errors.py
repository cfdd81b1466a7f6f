"""Errors with a message for the user."""


class UsageError(ValueError):
    """An option, or a value of one, that is not allowed. Exit code 2."""


class ChatError(ValueError):
    """A request that cannot be fulfilled. Exit code 1."""


def one_line(error: BaseException) -> str:
    """Return the message of an error on one line."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines).replace(":; ", ": ") or type(error).__name__
