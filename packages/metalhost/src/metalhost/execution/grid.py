"""Grid and threadgroup sizes, with the limits of Metal and of the runtime."""

import math
from collections.abc import Sequence

MAX_THREADS = 1024
"""Maximum number of threads in a threadgroup, on every Apple GPU."""
MAX_GROUPS = 2**32 - 1
"""Maximum number of threadgroups in a grid, which the runtime counts in 32 bits."""


def threadgroup_size(grid: Sequence[int], threadgroup: Sequence[int]) -> tuple[int, int, int]:
    """Return the size of a threadgroup, which MLX limits to the size of the grid.

    Raises:
        ValueError: if a size is invalid, a threadgroup has too many threads, or the grid has too
            many threadgroups.
    """
    for name, size in (("grid", grid), ("threadgroup", threadgroup)):
        if len(size) != 3 or min(size) < 1 or max(size) >= 2**32:
            raise ValueError(
                f"{name}: expected three numbers from 1 to 2^32 - 1, got {tuple(size)}"
            )
    x, y, z = (min(pair) for pair in zip(threadgroup, grid, strict=True))
    if x * y * z > MAX_THREADS:
        raise ValueError(f"threadgroup: expected {MAX_THREADS} threads at most, got {x * y * z}")
    groups = math.prod(-(-whole // part) for whole, part in zip(grid, (x, y, z), strict=True))
    if groups > MAX_GROUPS:
        raise ValueError(f"grid: expected {MAX_GROUPS} threadgroups at most, got {groups}")
    return x, y, z
