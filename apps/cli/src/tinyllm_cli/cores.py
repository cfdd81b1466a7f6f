"""The cores of this machine."""

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_PROCESSORS = Path("/sys/devices/system/cpu")
_MEMBERSHIP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return the number of cores that this process may use.

    Hardware threads of one core count once, as in the thread pool of the native kernels: they
    share its units of arithmetic. The CPU quotas of a container or a service are limits, too.
    """
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cores = len({_siblings(cpu) for cpu in os.sched_getaffinity(0)})
    return max(1, min([cores, *_quotas()]))


def _siblings(cpu: int) -> str:
    """Return the hardware threads of a processor's core. Without a description it is alone."""
    file = _PROCESSORS / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    return file.read_text().strip() if file.exists() else str(cpu)


def _quotas() -> Iterator[int]:
    """Yield the CPU quota of each control group (cgroup v2) of this process, in cores."""
    text = _MEMBERSHIP.read_text(errors="surrogateescape") if _MEMBERSHIP.exists() else ""
    path = next((line[3:] for line in text.split("\n") if line.startswith("0::")), "")
    folder = _GROUPS / path.lstrip("/")
    # In a container the path may be one of the host, whose folder is missing. The container's own
    # group is then the last one.
    for group in (folder, *folder.parents):
        file = group / "cpu.max"
        if group.is_relative_to(_GROUPS) and file.exists():
            quota, period = file.read_text().split()
            if quota != "max":
                yield math.ceil(int(quota) / int(period))
