"""Errors of backends that cannot be used."""

from __future__ import annotations


class BackendError(RuntimeError):
    """A requested backend is not on this machine; the message gives the reason."""


class BrokenBackendError(BackendError):
    """A backend is installed and does not work, or an environment variable of it is invalid.

    Unlike an absent backend it is never replaced in an automatic choice: the cause can be repaired.
    """
