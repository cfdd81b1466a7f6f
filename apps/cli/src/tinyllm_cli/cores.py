"""The cores of this machine."""

import os
import sys

import psutil


def usable_cores() -> int:
    """Return the number of cores that this process may use.

    Hardware threads of one core count once: they share its units of arithmetic.
    """
    threads = os.cpu_count() or 1
    if sys.platform == "linux":
        threads = len(os.sched_getaffinity(0))
    return min(threads, psutil.cpu_count(logical=False) or threads)
