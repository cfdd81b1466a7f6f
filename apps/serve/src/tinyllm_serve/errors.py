"""What a user can do wrong on the command line, and what can go wrong around the server."""


class UsageError(ValueError):
    """An option or its value is not allowed; the message says what is. Exit code 2."""


class ServeError(RuntimeError):
    """The server cannot be started; the message says why. Exit code 1."""
