"""The C++ compiler of this machine."""

from __future__ import annotations

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
"""The first versions that fill variables with a pattern and know _Float16."""

_COMMON = (
    "-std=c++20",
    "-fPIE",
    "-g1",  # lines
    "-gdwarf-4",  # as every addr2line reads it
    "-w",
    "-fno-exceptions",
    "-fno-rtti",
    "-fsigned-char",  # also on AArch64
    "-fno-strict-aliasing",  # kernels cast pointers
    "-fno-stack-protector",
    "-fstack-clash-protection",  # so that no frame steps over the guard pages of a stack
    "-fno-omit-frame-pointer",  # reports follow the frames
    "-mno-omit-leaf-frame-pointer",
    "-ffp-contract=off",  # the same numbers on every machine
    "-ftrivial-auto-var-init=pattern",
    "-U_FORTIFY_SOURCE",
)
_BY_MODE: dict[Mode, tuple[str, ...]] = {
    "fast": ("-O1",),  # runs as fast as with -O2, and is compiled in three quarters of the time
    "check": (
        "-O1",
        "-DMETALHOST_CHECKED=1",
        "-fsanitize=thread",
    ),
}
_UNDEFINED = "shift,integer-divide-by-zero,signed-integer-overflow,alignment"


class CompilerError(RuntimeError):
    """There is no compiler that can be used; the message says what to do."""


@dataclass(frozen=True)
class Compiler:
    """A compiler.

    Attributes:
        path: the program.
        name: `"g++"` or `"clang"`.
        version: such as `"12.2.0"`.
        target: such as `"x86_64-linux-gnu"`.
    """

    path: str
    name: str
    version: str
    target: str

    def flags(self, mode: Mode) -> tuple[str, ...]:
        """For a kernel."""
        flags = (*_COMMON, *_BY_MODE[mode])
        if mode == "check":
            # clang's "bounds" has a second half that traps instead of reporting.
            bounds = "bounds" if self.name == "g++" else "array-bounds"
            flags += (f"-fsanitize={bounds},{_UNDEFINED}",)
            if self.name == "clang":  # which sees no need to tell of `y += x` that y is read
                flags += ("-mllvm", "-tsan-instrument-read-before-write")
        # A half is rounded after each operation, as in Metal.
        if self.target.startswith("x86_64"):
            gcc = self.name == "g++"
            flags += () if gcc else ("-Xclang",)
            flags += ("-fexcess-precision=16" if gcc else "-ffloat16-excess-precision=none",)
        return flags

    def reads(self, precompiled: Path) -> tuple[str, ...]:
        """Flags for a unit that begins with a header; `precompiled` is its name with `.gch`."""
        if self.name == "g++":  # which looks for the one when it is told the other
            return ("-include", str(precompiled.with_suffix("")))
        return ("-include-pch", str(precompiled))

    def holds_to(self, folder: Path) -> str:
        """What a precompiled header has to agree with, beside the text of the files in a folder.

        clang refuses one whose files lie elsewhere or are newer: another environment's, say.
        """
        if self.name == "g++":
            return ""
        files = sorted(folder.rglob("*.h"))
        return " ".join(f"{file} {file.stat().st_mtime_ns}" for file in files)

    def run(self, arguments: Sequence[str]) -> str:
        """Start it, and give what it said when it failed; nothing if it did not."""
        done = subprocess.run(
            [self.path, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=os.environ | {"LC_ALL": "C"},  # the messages are read
        )
        return "" if done.returncode == 0 else done.stderr or f"exit status {done.returncode}"

    def __str__(self) -> str:
        """A line for people."""
        return f"{self.path} ({self.name} {self.version}, {self.target})"


def compiler() -> Compiler:
    """The one that the environment variable METALHOST_CXX names, or the first of g++ and clang++.

    Raises:
        CompilerError: if there is none, or it is too old, or this is not Linux.
    """
    return _find(os.environ.get("METALHOST_CXX", ""))


@functools.cache
def _find(wanted: str) -> Compiler:
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        here = f"{platform.system()} on {platform.machine()}"
        raise CompilerError(f"metalhost: expected Linux on x86_64 or aarch64, got {here}")
    for program in [wanted] if wanted else ["g++", "clang++"]:
        path = shutil.which(program)
        if path is not None:
            return _describe(path)
    looked = f"METALHOST_CXX={wanted}" if wanted else "g++ or clang++"
    raise CompilerError(
        f"metalhost: expected a C++ compiler, found no {looked}; `apt-get install g++` brings one"
    )


def _describe(path: str) -> Compiler:
    def ask(option: str) -> str:
        done = subprocess.run([path, option], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    name = "clang" if "clang" in ask("--version") else "g++"
    version = ask("-dumpfullversion") if name == "g++" else ask("-dumpversion")
    major = int(version.split(".")[0]) if version[:1].isdigit() else 0
    if major < OLDEST[name]:
        raise CompilerError(
            f"metalhost: expected {name} {OLDEST[name]} or later, got {version or 'no version'} "
            f"({path}); METALHOST_CXX names another one"
        )
    return Compiler(path, name, version, ask("-dumpmachine"))
