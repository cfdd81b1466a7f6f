"""The kernel's text under clang's eyes: types and address spaces, nothing is run.

`device`, `constant` and `threadgroup` are address spaces of clang's, so that it refuses to mix
them, in plain C++14, which is what Metal is made of. The library is only declared
(native/address_spaces); no header of the host is seen.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from metalhost import build_cache, compiler_errors
from metalhost.kernel_text import KernelText
from metalhost.problem import Problem
from metalhost.translation import unit_to_check

_HEADERS = Path(__file__).parent / "native" / "address_spaces"
_NAMES = ("clang++", *(f"clang++-{version}" for version in range(21, 15, -1)))
_FLAGS = (
    "-std=c++14",
    "-fsyntax-only",
    "-nostdinc",
    "-ffreestanding",
    "-fno-exceptions",
    "-fno-rtti",
    "-fsigned-char",
    "-fno-caret-diagnostics",
    "-fno-diagnostics-show-option",
    "-ferror-limit=20",
    "-Wno-everything",
    "-Werror=vla",
    "-Werror=uninitialized",
    "-Werror=sometimes-uninitialized",
    "-Wno-error=constexpr",
)
# It must know vectors of bfloat, which came late and not for all targets.
_PROBE = '#include "kernel.h"\nbfloat4 probe(bfloat4 v) { return v * v.wzyx + bfloat(1); }\n'


def clang() -> str | None:
    """The path of a clang that can be used, or None; METALHOST_CLANG names one."""
    return _find(os.environ.get("METALHOST_CLANG", ""))


@functools.cache
def _find(wanted: str) -> str | None:
    for program in [wanted] if wanted else _NAMES:
        path = shutil.which(program)
        if path is not None and not _said(path, _PROBE):
            return path
    return None


@functools.cache
def _version(path: str) -> str:
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return told.stdout


@functools.cache
def _declarations() -> str:
    """The library as clang sees it."""
    return "".join(path.read_text() for path in sorted(_HEADERS.iterdir()))


def _said(path: str, unit: str) -> str:
    """The messages of a clang about a translation unit; none if it has no objections."""
    done = subprocess.run(
        [path, *_FLAGS, "-I", str(_HEADERS), "-x", "c++", "-"],
        input=unit,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return done.stderr if done.returncode else ""


def problems(text: KernelText) -> list[Problem]:
    """What clang finds; nothing where there is no clang.

    Raises:
        KernelTextError: if a `threadgroup` is not understood.
    """
    path = clang()
    if path is None:
        return []
    unit = unit_to_check(text)

    def make(scratch: Path) -> Path:
        said = scratch / "said.txt"
        said.write_text(_said(path, unit), encoding="utf-8")
        return said

    key = build_cache.key(path, _version(path), " ".join(_FLAGS), _declarations(), unit)
    said = build_cache.cached(f"{key}.txt", make).read_text(encoding="utf-8")
    return [text.located(problem) for problem in compiler_errors.problems(said)]
