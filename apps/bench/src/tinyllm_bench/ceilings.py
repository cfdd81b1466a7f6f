"""What this machine can do at best: how fast it reads memory, how fast it multiplies."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from tinyllm_bench.cost import Cost, product_flops
from tinyllm_bench.machine import Machine
from tinyllm_bench.memory import available_memory

# So much that next to nothing of it is in a cache: virtual machines know only a part of theirs, and
# a quarter of this was read here at twice the speed of memory.
_READ_BYTES = 1 << 30
_MEMORY_SHARE = 4  # where memory is short: one part in so many of what is free
_SIDE = 2048  # of the matrices on a CPU; on a GPU four times as much


@dataclass(frozen=True)
class Ceilings:
    """The machine's limits, as measured: the best of several passes.

    Attributes:
        read_gbps: billions of bytes read a second.
        tflops: trillions of operations a second, of a matrix product.
        read_how: what was read, and how.
        tflops_how: what was multiplied, and how.
    """

    read_gbps: float
    tflops: float
    read_how: str
    tflops_how: str

    def share_of_read(self, cost: Cost, seconds: float) -> float:
        """The part of the reading speed that was reached."""
        return cost.gbps(seconds) / self.read_gbps

    def share_of_compute(self, cost: Cost, seconds: float) -> float:
        """The part of the computing speed that was reached."""
        return cost.tflops(seconds) / self.tflops

    def limit(self, cost: Cost) -> float:
        """Seconds that no implementation can go below: the slower of reading and computing.

        The roofline of Williams, Waterman and Patterson (2009).
        """
        return max(cost.bytes / self.read_gbps / 1e9, cost.flops / self.tflops / 1e12)

    def best(self, other: "Ceilings") -> "Ceilings":
        """The higher of each: a machine that others use is never better than it is."""
        return replace(
            self,
            read_gbps=max(self.read_gbps, other.read_gbps),
            tflops=max(self.tflops, other.tflops),
        )


def measure_ceilings(machine: Machine, seconds: float) -> Ceilings:
    """Measure for so many seconds each; on the device that MLX computes on."""
    if machine.device == "gpu":
        return _of_gpu(seconds)
    free = available_memory(gpu=False)
    size = _READ_BYTES if free is None else min(_READ_BYTES, free // _MEMORY_SHARE)
    numbers = np.ones(size // 4, np.int32)
    parts = np.array_split(numbers, machine.cores)
    with ThreadPoolExecutor(machine.cores) as pool:
        read = _fastest(lambda: list(pool.map(np.max, parts)), seconds)
    del numbers, parts
    matrix = np.random.default_rng(0).random((_SIDE, _SIDE), np.float32)
    product = _fastest(lambda: matrix @ matrix, seconds)
    return Ceilings(
        read_gbps=size / read / 1e9,
        tflops=product_flops(_SIDE, _SIDE, _SIDE) / product / 1e12,
        read_how=f"largest of {size >> 20} MiB of int32, NumPy, {machine.cores} threads",
        tflops_how=f"float32 product of {_SIDE} x {_SIDE}, NumPy's BLAS",
    )


def _of_gpu(seconds: float) -> Ceilings:
    """The same through MLX, in bfloat16, whose products a GPU is built for."""
    side, size = 4 * _SIDE, _READ_BYTES
    numbers = mx.ones((size // 4,), mx.int32)
    matrix = mx.random.normal((side, side)).astype(mx.bfloat16)
    mx.eval(numbers, matrix)
    read = _fastest(lambda: mx.eval(mx.max(numbers)), seconds)
    product = _fastest(lambda: mx.eval(matrix @ matrix), seconds)
    return Ceilings(
        read_gbps=size / read / 1e9,
        tflops=product_flops(side, side, side) / product / 1e12,
        read_how=f"largest of {size >> 20} MiB of int32, MLX",
        tflops_how=f"bfloat16 product of {side} x {side}, MLX",
    )


def _fastest(work: Callable[[], object], seconds: float) -> float:
    """The least time of several passes, after one that does not count."""
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
