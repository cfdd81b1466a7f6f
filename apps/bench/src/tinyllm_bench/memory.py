"""Whether what is asked for fits into memory, asked before it is tried."""

import os
from pathlib import Path

import mlx.core as mx

from tinyllm_bench.errors import BenchError

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_memory(*, gpu: bool) -> int | None:
    """Bytes that a process can still take, None where the system does not tell.

    On Linux what is free or can be freed, within the limit of a container; on a Mac, and for a
    GPU, all the memory there is.
    """
    if not gpu and _MEMINFO.exists():
        free = read_meminfo(_MEMINFO.read_text())
        limit = _container_room(_CGROUP)
        return free if limit is None or free is None else min(free, limit)
    info = mx.device_info() if gpu else {}
    names = ("max_recommended_working_set_size", "total_memory", "memory_size")
    told = [size for name in names if isinstance(size := info.get(name), int)]
    if told:
        return told[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_meminfo(text: str) -> int | None:
    """MemAvailable of /proc/meminfo, in bytes."""
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def check_memory(what: str, needed: int, available: int | None) -> None:
    """Refuse what does not fit.

    Raises:
        BenchError: saying what is needed, what there is and what to do.
    """
    if available is not None and needed > available:
        raise BenchError(
            f"{what} needs {needed / 1e9:.1f} GB of memory, {available / 1e9:.1f} GB are free: "
            "take fewer bits (--bits 4), a smaller --shape, or one implementation (--ops mlx)"
        )


def _container_room(folder: Path) -> int | None:
    """What the control group's limit leaves, None without one."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):  # another version of control groups, or none
        return None
    return None if limit == "max" else int(limit) - used
