"""Machine that a measurement runs on, with its memory."""

import platform
import re
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import psutil
from tinyllm_cli.cores import usable_cores
from tinyllm_kernels.backend import on_gpu
from tinyllm_qwen.format_bytes import format_bytes
from tinyllm_qwen.free_memory import free_memory

from tinyllm_bench.errors import BenchError

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Instruction sets that matter to matrix products.
_ISA = re.compile(r"avx|amx|fma|f16c|sve|sme(?!p)|asimd|bf16|i8mm|fphp")


@dataclass(frozen=True)
class Machine:
    """Properties of a machine that decide how fast a model can be."""

    cpu: str  # model name of the CPU
    cores: int  # cores that this process may use
    isa: tuple[str, ...]  # instruction sets that matter to matrix products
    cache: int  # bytes of the largest cache, 0 if the system does not report it
    memory: int  # bytes of physical memory
    system: str  # operating system and architecture
    device: str  # default device of MLX, "cpu" or "gpu"
    device_name: str  # name of that device in MLX
    mlx: str  # version of MLX
    python: str  # version of Python

    @classmethod
    def here(cls) -> "Machine":
        """Return this machine."""
        fields = read_cpuinfo(_CPUINFO.read_text()) if _CPUINFO.exists() else {}
        flags = fields.get("flags") or fields.get("Features") or ""
        return cls(
            cpu=fields.get("model name") or _cpu_name(),
            cores=usable_cores(),
            isa=tuple(sorted(flag for flag in flags.split() if _ISA.match(flag))),
            cache=largest_cache(_CACHES),
            memory=psutil.virtual_memory().total,
            system=f"{platform.system()} {platform.machine()}",
            device="gpu" if on_gpu() else "cpu",
            device_name=str(mx.device_info().get("device_name", "unknown")),
            mlx=version("mlx"),
            python=platform.python_version(),
        )

    def __str__(self) -> str:
        """Return one line for people."""
        where = "" if self.device == "cpu" else f", GPU {self.device_name}"
        return f"{self.cpu}, {self.cores} cores{where}, {self.system}, MLX {self.mlx}"


def read_cpuinfo(text: str) -> dict[str, str]:
    """Return the fields of the first core in /proc/cpuinfo."""
    pairs = (line.partition(":") for line in text.strip().split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def largest_cache(folder: Path) -> int:
    """Return the bytes of the largest cache that the system lists, 0 without a list."""
    sizes = [path.read_text().strip() for path in folder.glob("index*/size")]
    return max((int(size[:-1]) * _UNITS[size[-1]] for size in sizes if size), default=0)


def available_memory(*, gpu: bool) -> int:
    """Return the bytes that a process can still allocate: see `free_memory`.

    On a Mac and for a GPU, the result is the total memory.
    """
    if gpu:
        info = mx.device_info()
        for name in ("max_recommended_working_set_size", "total_memory", "memory_size"):
            if isinstance(size := info.get(name), int):
                return size
    if gpu or platform.system() != "Linux":
        return psutil.virtual_memory().total
    return free_memory()


def check_memory(what: str, needed: int, available: int) -> None:
    """Raise `BenchError` if `needed` bytes are not available."""
    if needed > available:
        raise BenchError(
            f"{what} needs {format_bytes(needed)} of memory, {format_bytes(available)} are free: "
            "take fewer --bits, a smaller --shape, or one implementation (--ops NAME)"
        )


def _cpu_name() -> str:
    """Return the name of the CPU without /proc: on a Mac its name, otherwise the architecture."""
    if platform.system() != "Darwin":
        return platform.processor() or platform.machine()
    query = ["sysctl", "-n", "machdep.cpu.brand_string"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return done.stdout.strip() or platform.machine()
