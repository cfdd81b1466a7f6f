"""The cores of this machine."""

import os
import sys
from pathlib import Path

_PROCESSORS = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Return the number of cores that this process may use.

    Hardware threads of one core count once, as in the thread pool of the native kernels: they
    share its units of arithmetic.
    """
    if sys.platform != "linux":
        return os.cpu_count() or 1
    return len({_siblings(cpu) for cpu in os.sched_getaffinity(0)})


def _siblings(cpu: int) -> str:
    """Return the hardware threads of a processor's core. Without a description it is alone."""
    file = _PROCESSORS / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    return file.read_text().strip() if file.exists() else str(cpu)
