"""Memory that nobody uses any more, back to the system."""

from __future__ import annotations

import ctypes
import platform

import mlx.core as mx


def release_free_memory() -> None:
    """Give back what MLX keeps for the next arrays, and what C's heap has free.

    glibc returns only what lies at the end of a heap; the pieces between what is in use stay with
    the process until `malloc_trim` (malloc(3)) is asked. Other C libraries have no such call.
    """
    mx.clear_cache()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
