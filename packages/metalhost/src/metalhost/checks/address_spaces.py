"""Type checks by clang, with Metal's address spaces. Nothing is executed.

Metal is C++14 with address spaces. clang checks the kernel as plain C++14, in which `device`,
`constant` and `threadgroup` are address spaces of clang. It rejects code that mixes them. The
headers in native/address_spaces only declare Metal's library, and include no header of the host.
"""

import functools
import os
import shutil
import subprocess
from pathlib import Path

from metalhost.compilation import cache, compiler_errors
from metalhost.compilation.native_files import ADDRESS_SPACES, contents
from metalhost.text.kernel_text import KernelText
from metalhost.text.problem import Problem
from metalhost.translation.translation_unit import unit_to_check

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
# The headers need vectors of bfloat, which clang 16 lacks, and later versions lack on some targets.
_PROBE = '#include "kernel.h"\nbfloat4 probe(bfloat4 v) { return v * v.wzyx + bfloat(1); }\n'


def clang() -> str | None:
    """Return the path of a usable clang, or None. METALHOST_CLANG selects one."""
    return _find(os.environ.get("METALHOST_CLANG", ""))


@functools.cache
def _find(wanted: str) -> str | None:
    for program in [wanted] if wanted else _NAMES:
        path = shutil.which(program)
        if path is not None and not _check(path, _PROBE):
            return path
    return None


@functools.cache
def _version(path: str) -> str:
    result = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return result.stdout


def _check(path: str, unit: str) -> str:
    """Return clang's messages about a translation unit, or an empty string if it is valid."""
    result = subprocess.run(
        [path, *_FLAGS, "-I", str(ADDRESS_SPACES), "-x", "c++", "-"],
        input=unit,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return result.stderr if result.returncode else ""


def address_space_problems(text: KernelText) -> list[Problem]:
    """Return the problems that clang finds. Without a usable clang, return an empty list.

    Raises:
        KernelTextError: if a use of `threadgroup` is not supported.
    """
    path = clang()
    if path is None:
        return []
    unit = unit_to_check(text)

    def build(scratch: Path) -> Path:
        messages = scratch / "messages.txt"
        messages.write_text(_check(path, unit), encoding="utf-8")
        return messages

    key = cache.key(path, _version(path), " ".join(_FLAGS), contents(ADDRESS_SPACES), unit)
    messages = cache.get_or_build(f"{key}.txt", build).read_text(encoding="utf-8")
    return [text.located(problem) for problem in compiler_errors.problems(messages)]
