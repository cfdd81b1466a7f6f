"""Comparison of the race detector with the definition of a race, on random programs.

The detector keeps the last access of each kind, and the extent of all accesses. The oracle keeps
all accesses and compares every pair. Both must agree on every program. test_access_set.py checks
all short programs.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
from metalhost import FaultKind, KernelFaultError, Settings, metal_kernel, using
from numpy.typing import NDArray

THREADS, STEPS = 96, 7
BUSY = [0, 1, 33, 64, 65]
PROGRAMS = 60
NOTHING, READ, WRITE, ATOMIC_UPDATE, ATOMIC_LOAD = range(5)
NONE, SIMDGROUP, THREADGROUP, OTHER_MEMORY = range(4)
# In each step, a thread may access the cell, and then all threads may pass a barrier.
SOURCE = """
    const uint t = thread_index_in_threadgroup, n = threads_per_threadgroup.x;
    const uint i = thread_position_in_grid.x;
    CELL
    int sum = 0;
    for (int s = 0; s < STEPS; ++s) {
      const int kind = access_kinds[s * threads_per_grid.x + i];
      if (kind == 1) sum += *cell;
      if (kind == 2) *cell = s;
      if (kind == 3)
        atomic_fetch_add_explicit(reinterpret_cast<SPACE atomic_int*>(cell), 1,
                                  memory_order_relaxed);
      if (kind == 4)
        sum += atomic_load_explicit(reinterpret_cast<const SPACE atomic_int*>(cell),
                                    memory_order_relaxed);
      if (barriers[s] == 1) simdgroup_barrier(mem_flags::MINE);
      if (barriers[s] == 2) threadgroup_barrier(mem_flags::MINE);
      if (barriers[s] == 3) threadgroup_barrier(mem_flags::OTHER);
    }
    y[i] = sum;
"""
OF_GROUP = {
    "CELL": "threadgroup int value; threadgroup int* cell = &value; if (t == 0) *cell = 0; "
    "threadgroup_barrier(mem_flags::mem_threadgroup);",
    "SPACE": "threadgroup",
    "MINE": "mem_threadgroup",
    "OTHER": "mem_device",
}
OF_DEVICE = {
    "CELL": "device int* cell = z;",
    "SPACE": "device",
    "MINE": "mem_device",
    "OTHER": "mem_threadgroup",
}


@dataclass(frozen=True)
class Access:
    """Access in the list of the oracle."""

    kind: int
    group: int
    thread: int
    epoch: int
    simd_epoch: int

    def races_with(self, other: "Access") -> bool:
        kinds = {self.kind, other.kind}
        never_race = kinds <= {READ, ATOMIC_LOAD} or kinds <= {ATOMIC_LOAD, ATOMIC_UPDATE}
        if never_race or (self.group, self.thread) == (other.group, other.thread):
            return False
        if self.group != other.group:
            return True
        if self.epoch != other.epoch:
            return False
        same_simdgroup = self.thread // 32 == other.thread // 32
        return not same_simdgroup or self.simd_epoch == other.simd_epoch


def program(rng: np.random.Generator) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the access of each thread in each step, and the barrier after each step."""
    kinds = np.zeros((STEPS, THREADS), np.int32)
    # Few accesses by few threads, so that a race that is found does not hide a race that is missed.
    for step in np.sort(rng.choice(STEPS, rng.integers(3, 6))):
        kinds[step, rng.choice(BUSY)] = rng.choice([READ, READ, ATOMIC_LOAD, WRITE, ATOMIC_UPDATE])
    return kinds, rng.choice(4, STEPS, p=[0.35, 0.3, 0.3, 0.05]).astype(np.int32)


def has_race(kinds: NDArray[np.int32], barriers: NDArray[np.int32], group_size: int) -> bool:
    accesses, epoch, simd_epoch = [], 0, 0
    for step in range(STEPS):
        for i in np.flatnonzero(kinds[step]):
            group, thread = divmod(int(i), group_size)
            accesses.append(Access(int(kinds[step, i]), group, thread, epoch, simd_epoch))
        epoch += barriers[step] == THREADGROUP
        simd_epoch += barriers[step] == SIMDGROUP
    return any(one.races_with(other) for one, other in combinations(accesses, 2))


@pytest.mark.parametrize("group_size", [96, 64])
@pytest.mark.parametrize("where", [OF_GROUP, OF_DEVICE], ids=["threadgroup", "device"])
def test_the_detector_agrees_with_the_definition_on_random_programs(
    where: dict[str, str], group_size: int, host: None
) -> None:
    source = SOURCE.replace("STEPS", str(STEPS))
    for word, replacement in where.items():
        source = source.replace(word, replacement)
    kernel = metal_kernel("random", ["access_kinds", "barriers"], ["y", "z"], source)
    rng = np.random.default_rng(7)
    verdicts = []
    for number in range(PROGRAMS):
        kinds, barriers = program(rng)
        if where is OF_GROUP and group_size < THREADS:
            kinds[:, group_size:] = NOTHING  # each group has its own cell
        expected = has_race(kinds, barriers, group_size)
        found: frozenset[FaultKind] = frozenset()
        try:
            with using(Settings(seed=number % 3)):
                kernel(
                    inputs=[kinds, barriers],
                    output_shapes=[(THREADS,), (1,)],
                    output_dtypes=[np.int32, np.int32],
                    grid=(THREADS, 1, 1),
                    threadgroup=(group_size, 1, 1),
                    init_value=0,
                )
        except KernelFaultError as error:
            found = error.kinds
        assert found == ({FaultKind.RACE} if expected else set()), (
            kinds[:, [0, 1, 33, 64, 95]],
            barriers,
        )
        verdicts.append(expected)
    assert (
        PROGRAMS / 10 < sum(verdicts) < 9 * PROGRAMS / 10
    )  # a detector with one constant answer fails
