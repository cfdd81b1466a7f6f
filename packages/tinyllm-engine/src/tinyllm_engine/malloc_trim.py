"""Return of unused memory to the system."""

from __future__ import annotations

import ctypes
import platform

import mlx.core as mx


def release_free_memory() -> None:
    """Return the buffers that MLX keeps for the next arrays, and the free memory of C's heap.

    glibc by itself returns only the end of a heap; free pieces between used ones stay with the
    process until `malloc_trim` (malloc(3)) is called. Other C libraries have no such call.
    """
    mx.clear_cache()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
