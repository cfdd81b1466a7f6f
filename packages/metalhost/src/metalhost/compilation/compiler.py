"""C++ compiler of the machine, with the flags that kernels need."""

import functools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metalhost.settings import Mode

OLDEST = {"g++": 12, "clang": 16}
"""Oldest supported versions: the first with -ftrivial-auto-var-init and _Float16 in C++."""

_COMMON = (
    "-std=c++20",
    "-fPIE",
    "-g1",  # line numbers
    "-gdwarf-4",  # a format that every addr2line reads
    "-w",
    "-fno-exceptions",
    "-fno-rtti",
    "-fsigned-char",  # char is unsigned on AArch64 by default
    "-fno-strict-aliasing",  # because kernels cast pointers
    "-fno-stack-protector",
    "-fstack-clash-protection",  # no frame may skip the guard pages of a stack
    "-fno-omit-frame-pointer",  # reports walk the frames
    "-mno-omit-leaf-frame-pointer",
    "-fno-plt",  # no stubs, which cannot be unwound on AArch64
    "-ffp-contract=off",  # so that every machine gives the same numbers
    "-ftrivial-auto-var-init=pattern",
    "-U_FORTIFY_SOURCE",
)
_BY_MODE: dict[Mode, tuple[str, ...]] = {
    "fast": ("-O1",),  # as fast as -O2 at run time, and 25% faster to compile
    "check": (
        "-O1",
        "-DMETALHOST_CHECKED=1",
        "-fsanitize=thread",
    ),
}
_UNDEFINED = "shift,integer-divide-by-zero,signed-integer-overflow,float-cast-overflow,alignment"


class CompilerError(RuntimeError):
    """The machine has no usable C++ compiler. The message says how to get one."""


@dataclass(frozen=True)
class Compiler:
    """C++ compiler.

    Attributes:
        path: path of the program.
        name: `"g++"` or `"clang"`.
        version: version, such as `"12.2.0"`.
        target: target triple, such as `"x86_64-linux-gnu"`.
    """

    path: str
    name: str
    version: str
    target: str

    def flags(self, mode: Mode) -> tuple[str, ...]:
        """Return the flags for compiling a kernel."""
        flags = (*_COMMON, *_BY_MODE[mode])
        if mode == "check":
            # In clang, "bounds" includes "local-bounds", which traps instead of reporting.
            bounds = "bounds" if self.name == "g++" else "array-bounds"
            flags += (f"-fsanitize={bounds},{_UNDEFINED}",)
            if self.name == "clang":  # by default, clang does not report the read in `y += x`
                flags += ("-mllvm", "-tsan-instrument-read-before-write")
        # Round a half after each operation, as Metal does.
        if self.target.startswith("x86_64"):
            if self.name == "g++":
                flags += ("-fexcess-precision=16",)
            else:
                flags += ("-Xclang", "-ffloat16-excess-precision=none")
        return flags

    def precompiled_header_flags(self, precompiled: Path) -> tuple[str, ...]:
        """Return the flags for a unit that begins with a precompiled header, a `.gch` file."""
        if self.name == "g++":  # given the name of the header, g++ looks for its `.gch` file
            return ("-include", str(precompiled.with_suffix("")))
        return ("-include-pch", str(precompiled))

    def precompiled_header_key(self, folder: Path) -> str:
        """Return the part of a precompiled header's cache key that is not the text of its files.

        clang rejects a precompiled header if its files have moved or are newer, for example in
        another virtual environment. The key therefore holds their paths and times.
        """
        if self.name == "g++":
            return ""
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return " ".join(f"{file} {file.stat().st_mtime_ns}" for file in files)

    def run(self, arguments: Sequence[str]) -> str:
        """Run the compiler. Return its messages if it fails, otherwise an empty string."""
        result = subprocess.run(
            [self.path, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=os.environ | {"LC_ALL": "C"},  # `compiler_errors` parses English messages
        )
        return "" if result.returncode == 0 else result.stderr or f"exit status {result.returncode}"

    def __str__(self) -> str:
        """Return the path, name, version and target."""
        return f"{self.path} ({self.name} {self.version}, {self.target})"


def compiler() -> Compiler:
    """Return the compiler in METALHOST_CXX if it is set, otherwise g++ or else clang++.

    Raises:
        CompilerError: if there is no compiler, or it is too old, or the system is not Linux.
    """
    return _find(os.environ.get("METALHOST_CXX", ""))


@functools.cache
def _find(wanted: str) -> Compiler:
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        here = f"{platform.system()} on {platform.machine()}"
        raise CompilerError(
            f"metalhost: expected Linux on x86_64 or aarch64, got {here}: "
            "run kernels on a Linux machine"
        )
    for program in [wanted] if wanted else ["g++", "clang++"]:
        path = shutil.which(program)
        if path is not None:
            return _describe(path)
    missing = f"METALHOST_CXX={wanted}" if wanted else "g++ or clang++"
    raise CompilerError(
        f"metalhost: expected a C++ compiler, got no {missing}: "
        "install one, for example by `apt-get install g++`"
    )


def _describe(path: str) -> Compiler:
    def ask(option: str) -> str:
        result = subprocess.run([path, option], capture_output=True, text=True, check=False)
        return result.stdout.strip()

    name = "clang" if "clang" in ask("--version") else "g++"
    version = ask("-dumpfullversion") if name == "g++" else ask("-dumpversion")
    major = int(version.split(".")[0]) if version[:1].isdigit() else 0
    if major < OLDEST[name]:
        raise CompilerError(
            f"metalhost: expected {name} {OLDEST[name]} or later, got {version or 'no version'} "
            f"({path}): set METALHOST_CXX to a newer compiler"
        )
    return Compiler(path, name, version, ask("-dumpmachine"))
