"""The cores of this machine."""

import math
import os
import sys
from pathlib import Path

_PROCESSORS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Return the number of cores that this process may use.

    Hardware threads of one core count once, as in the thread pool of the native kernels: they
    share its units of arithmetic. The CPU quota of a container is a limit, too.
    """
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cores = len({_siblings(cpu) for cpu in os.sched_getaffinity(0)})
    return max(1, min(cores, _quota(cores)))


def _siblings(cpu: int) -> str:
    """Return the hardware threads of a processor's core. Without a description it is alone."""
    file = _PROCESSORS / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    return file.read_text().strip() if file.exists() else str(cpu)


def _quota(cores: int) -> int:
    """Return how many cores the quota of cgroup v2 allows. Without a quota these are all cores."""
    match _QUOTA.read_text().split() if _QUOTA.exists() else []:
        case [quota, period] if quota != "max":
            return math.ceil(int(quota) / int(period))
    return cores
