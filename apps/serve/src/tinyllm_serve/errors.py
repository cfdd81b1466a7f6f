"""Errors that end the process with a message."""


class UsageError(ValueError):
    """An option or its value is not allowed. The exit code is 2."""


class ServeError(RuntimeError):
    """The server cannot start or go on. The exit code is 1."""
