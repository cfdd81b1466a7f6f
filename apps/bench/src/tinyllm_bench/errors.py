"""Errors of a benchmark."""


class BenchError(ValueError):
    """A requested measurement cannot be made. The message gives the reason. Exit code 1."""


class PeerError(RuntimeError):
    """A peer failed during a measurement. The message gives the reason."""
