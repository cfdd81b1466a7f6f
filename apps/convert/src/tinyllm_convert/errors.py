"""Errors with a message for the user."""


class UsageError(ValueError):
    """An option or an option's value is not allowed. The exit code is 2."""


def one_line(error: BaseException) -> str:
    """Return the message of an error on one line, without control characters."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    text = "; ".join(lines).replace(":; ", ": ") or type(error).__name__
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
