"""The machine that a measurement was taken on."""

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# What a product of matrices can make use of.
_ISA = re.compile(r"avx|amx|fma|f16c|sve|sme(?!p)|asimd|bf16|i8mm|fphp")


@dataclass(frozen=True)
class Machine:
    """What decides how fast a model can be here.

    Attributes:
        cpu: its model, as the system calls it.
        cores: that this process may use.
        isa: the instruction sets that matter to matrix products.
        cache: bytes of the largest cache, 0 where the system does not tell.
        memory: bytes in all.
        system: operating system and architecture.
        device: where MLX computes, "cpu" or "gpu".
        device_name: what MLX calls it.
        mlx: version of MLX.
        python: version of Python.
    """

    cpu: str
    cores: int
    isa: tuple[str, ...]
    cache: int
    memory: int
    system: str
    device: str
    device_name: str
    mlx: str
    python: str

    @classmethod
    def here(cls) -> "Machine":
        """Look at this one."""
        fields = read_cpuinfo(_CPUINFO.read_text()) if _CPUINFO.exists() else {}
        flags = fields.get("flags") or fields.get("Features") or ""
        return cls(
            cpu=fields.get("model name") or _brand(),
            cores=usable_cores(),
            isa=tuple(sorted(flag for flag in flags.split() if _ISA.match(flag))),
            cache=largest_cache(_CACHES),
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            system=f"{platform.system()} {platform.machine()}",
            device="gpu" if on_gpu() else "cpu",
            device_name=str(mx.device_info().get("device_name", "unknown")),
            mlx=version("mlx"),
            python=platform.python_version(),
        )

    def __str__(self) -> str:
        """One line for people."""
        where = "" if self.device == "cpu" else f", GPU {self.device_name}"
        return f"{self.cpu}, {self.cores} cores{where}, {self.system}, MLX {self.mlx}"


def on_gpu() -> bool:
    """Whether MLX computes on a GPU."""
    return bool(mx.default_device().type == mx.DeviceType.gpu)


def usable_cores() -> int:
    """Cores that this process may run on."""
    if platform.system() == "Linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_cpuinfo(text: str) -> dict[str, str]:
    """The fields of the first core in /proc/cpuinfo."""
    first = text.strip().split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def largest_cache(folder: Path) -> int:
    """Bytes of the largest cache that the system lists, 0 without a list."""
    sizes = [path.read_text().strip() for path in folder.glob("index*/size")]
    return max((int(size[:-1]) * _UNITS[size[-1]] for size in sizes if size), default=0)


def _brand() -> str:
    """The CPU's name where /proc does not say it: a Mac's own, or the architecture."""
    if platform.system() != "Darwin":
        return platform.processor() or platform.machine()
    command = ["sysctl", "-n", "machdep.cpu.brand_string"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or platform.machine()
