"""How many threads there are, and how many of them make a group."""

from __future__ import annotations

import math
from collections.abc import Sequence

MAX_THREADS = 1024
"""Of a threadgroup, on every GPU of Apple's."""
MAX_GROUPS = 2**32 - 1
"""Of a grid: the runtime counts them in 32 bits."""


def group_size(grid: Sequence[int], threadgroup: Sequence[int]) -> tuple[int, int, int]:
    """The size of a threadgroup: MLX makes it no larger than the grid.

    Raises:
        ValueError: if a size is no size, a group has too many threads, or a grid too many groups.
    """
    for what, size in (("grid", grid), ("threadgroup", threadgroup)):
        if len(size) != 3 or min(size) < 1 or max(size) >= 2**32:
            raise ValueError(f"{what}: expected three numbers from 1 on, got {tuple(size)}")
    x, y, z = (min(pair) for pair in zip(threadgroup, grid, strict=True))
    if x * y * z > MAX_THREADS:
        raise ValueError(f"threadgroup: expected {MAX_THREADS} threads at most, got {x * y * z}")
    groups = math.prod(-(-whole // part) for whole, part in zip(grid, (x, y, z), strict=True))
    if groups > MAX_GROUPS:
        raise ValueError(f"grid: expected {MAX_GROUPS} threadgroups at most, got {groups}")
    return x, y, z
