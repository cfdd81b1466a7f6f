"""Errors raised for backends that cannot be used."""


class BackendError(RuntimeError):
    """The requested backend cannot be used on this machine. The message gives the reason."""


class BrokenBackendError(BackendError):
    """The backend is installed but does not work, or an environment variable for it is invalid.

    An automatic choice skips an absent backend, but raises this error, because the cause can be
    repaired.
    """
