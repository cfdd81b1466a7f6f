"""Release of unused memory to the operating system."""

import ctypes
import platform

import mlx.core as mx

IDLE_SECONDS = 1.0
"""Seconds without work after which a process frees the buffers kept for the next step."""


def release_free_memory() -> None:
    """Free the buffers that MLX keeps for later arrays, and the unused memory of the C heap.

    glibc returns only the unused end of the heap by itself. Unused blocks between used blocks stay
    with the process until it calls `malloc_trim` (malloc(3)). Other C libraries do not have
    `malloc_trim`.
    """
    mx.clear_cache()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
