"""Ceilings of this machine: its speed of reading memory and of multiplying matrices."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from tinyllm_bench.cost import Cost, product_flops
from tinyllm_bench.machine import Machine, available_memory

# Bytes to read: so many that a CPU's cache holds almost none of them. A virtual machine may not
# report its whole cache: a quarter of this size was read at twice the speed of memory.
_READ_BYTES = 1 << 30
_MEMORY_SHARE = 4  # if memory is short, read 1/4 of the free memory
_SIDE = 2048  # rows and columns of a matrix on a CPU; a GPU gets four times as many


@dataclass(frozen=True)
class Ceilings:
    """Measured limits of the machine, the best of several passes."""

    read_gbps: float  # gigabytes read per second
    tflops: float  # TFLOP/s of a matrix product
    read_how: str  # description of the read
    tflops_how: str  # description of the product

    def share_of_read(self, cost: Cost, seconds: float) -> float:
        """Return the share of the reading speed that was reached."""
        return cost.gbps(seconds) / self.read_gbps

    def share_of_compute(self, cost: Cost, seconds: float) -> float:
        """Return the share of the computing speed that was reached."""
        return cost.tflops(seconds) / self.tflops

    def limit(self, cost: Cost) -> float:
        """Return the lower bound of the time, in seconds: the longer of reading and computing.

        This is the roofline of Williams, Waterman and Patterson (2009).
        """
        return max(cost.bytes / self.read_gbps / 1e9, cost.flops / self.tflops / 1e12)

    def best(self, other: "Ceilings") -> "Ceilings":
        """Return the higher value of each ceiling: other load can only lower a measurement."""
        read, product = max(self.read_gbps, other.read_gbps), max(self.tflops, other.tflops)
        return replace(self, read_gbps=read, tflops=product)


def measure_ceilings(machine: Machine, seconds: float) -> Ceilings:
    """Measure both limits, for `seconds` each, on the default device of MLX."""
    on_gpu = machine.device == "gpu"
    side = 4 * _SIDE if on_gpu else _SIDE
    size = _READ_BYTES if on_gpu else min(_READ_BYTES, available_memory(gpu=False) // _MEMORY_SHARE)
    read, product = (_gpu_times if on_gpu else _cpu_times)(size, side, machine.cores, seconds)
    how = "MLX" if on_gpu else f"NumPy, {machine.cores} threads"
    kind, library = ("bfloat16", "MLX") if on_gpu else ("float32", "NumPy's BLAS")
    return Ceilings(
        read_gbps=size / read / 1e9,
        tflops=product_flops(side, side, side) / product / 1e12,
        read_how=f"largest of {size >> 20} MiB of int32, {how}",
        tflops_how=f"{kind} product of {side} x {side}, {library}",
    )


def _cpu_times(size: int, side: int, cores: int, seconds: float) -> tuple[float, float]:
    """Return the seconds of a read by all cores, and of a product."""
    parts = np.array_split(np.ones(size // 4, np.int32), cores)
    with ThreadPoolExecutor(cores) as pool:
        read = _fastest(lambda: list(pool.map(np.max, parts)), seconds)
    parts.clear()
    matrix = np.random.default_rng(0).random((side, side), np.float32)
    return read, _fastest(lambda: matrix @ matrix, seconds)


def _gpu_times(size: int, side: int, _cores: int, seconds: float) -> tuple[float, float]:
    """Return the seconds of a read, and of a product in bfloat16, which GPUs have units for."""
    numbers = mx.ones((size // 4,), mx.int32)
    matrix = mx.random.normal((side, side)).astype(mx.bfloat16)
    mx.eval(numbers, matrix)
    read = _fastest(lambda: mx.eval(mx.max(numbers)), seconds)
    return read, _fastest(lambda: mx.eval(matrix @ matrix), seconds)


def _fastest(work: Callable[[], object], seconds: float) -> float:
    """Return the least time of several passes after a warm-up."""
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
