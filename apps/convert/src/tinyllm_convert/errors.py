"""What a user can do wrong on the command line, and how an error is told."""


class UsageError(ValueError):
    """An option or its value is not allowed; the message says what is. Exit code 2."""


def one_line(error: BaseException) -> str:
    """What an error says, on one line, without characters that would move the cursor."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    text = "; ".join(lines).replace(":; ", ": ") or type(error).__name__
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
