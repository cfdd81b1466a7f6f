"""The memory of long bodies in the C heap."""

import ctypes
import platform

LARGE_BLOCK = 1 << 20
"""Bytes of a block that is returned to the system as soon as it is freed."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def return_large_blocks() -> None:
    """Let glibc return each large block to the system as soon as it is freed (mallopt(3)).

    By default glibc keeps freed blocks of up to 32 MB for later allocations of the same thread,
    and thus several copies of each long body. Other C libraries do not have `mallopt`.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK)
        library.mallopt(_M_TRIM_THRESHOLD, 2 * LARGE_BLOCK)
