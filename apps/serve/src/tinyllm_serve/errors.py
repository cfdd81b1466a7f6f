"""The error of a server that cannot go on."""


class ServeError(RuntimeError):
    """The server cannot start or go on. The exit code is 1."""
