"""The memory that a process can still allocate on MLX's default device."""

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import psutil

_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_V2 = ("memory.max", "memory.current", "")
"""Files with the limit and the usage of a control group, and the prefix of its cache's fields."""

_CACHES = ("active_file", "inactive_file")
"""Fields with the cached bytes of files, which the system frees before it ends a process. A model
that was just downloaded can be in both."""

_SPARE_PART = 16
"""One part of the free memory in so many stays free, for the activations of a step."""


def free_memory(root: Path = Path("/")) -> int:
    """Return the free bytes of MLX's default device.

    Those of a CPU are the free bytes of the machine, or of the control group that has fewer.
    Containers (Docker's `--memory`) and services (systemd's `MemoryMax`) are control groups. A
    process that exceeds the limit of its group is killed.

    Args:
        root: the folder with the system's `proc` and `sys`.
    """
    if mx.default_device().type == mx.gpu:
        return _free_of_gpu()
    return min([int(psutil.virtual_memory().available), *_free_of_groups(root)])


def cache_bytes(free: int) -> int:
    """Return the part of some free memory for caches. The rest is for activations."""
    return free - free // _SPARE_PART


def _free_of_gpu() -> int:
    """Return the free bytes of an NVIDIA GPU, or what a Mac recommends at most for its GPU.

    The GPU of a Mac has the machine's memory. MLX allocates beyond the recommendation without an
    error, and the Mac then swaps.
    """
    info = mx.device_info()
    if isinstance(free := info.get("free_memory"), int):
        return free + mx.get_cache_memory()
    most = info.get("max_recommended_working_set_size")
    assert isinstance(most, int)
    return max(0, most - mx.get_active_memory())


def _free_of_groups(root: Path) -> Iterator[int]:
    """Yield the free bytes of each control group of this process that has a limit."""
    try:
        # The name of a group can be any bytes but a line break and a slash.
        text = (root / "proc/self/cgroup").read_text(errors="surrogateescape")
    except OSError:  # not Linux
        return
    for group in text.split("\n"):
        if group.count(":") < 2:  # after the last line break
            continue
        _, controllers, path = group.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, names = root / "sys/fs/cgroup", _V2
        if controllers:
            top, names = top / "memory", _V1
        folder = top / path.lstrip("/")
        # The limits of all groups above count too. In a container the path can be one of the host,
        # whose folder is missing, and the files of the container's group are those of `top`.
        for each in (folder, *folder.parents):
            if each.is_relative_to(top):
                yield from _free_of_group(each, names)


def _free_of_group(folder: Path, names: tuple[str, str, str]) -> Iterator[int]:
    """Yield the free bytes of a control group, or nothing if it has no limit."""
    limit, usage, prefix = names
    try:
        most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        reclaimable = sum(int(fields.get(prefix + cache, 0)) for cache in _CACHES)
    except (OSError, ValueError):  # no such files, or the limit is "max"
        return
    yield max(0, most - used + reclaimable)
