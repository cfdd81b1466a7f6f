"""What a user can do wrong, and what can go wrong around a measurement."""


class UsageError(ValueError):
    """An option or its value is not allowed; the message says what is. Exit code 2."""


class BenchError(ValueError):
    """Something that was asked for cannot be done; the message says why. Exit code 1."""


def one_line(error: BaseException) -> str:
    """What an error says, on one line."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines).replace(":; ", ": ") or type(error).__name__
