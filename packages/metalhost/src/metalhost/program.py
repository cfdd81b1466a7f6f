"""A kernel and the runtime, built into one program that runs a launch and ends.

The runtime is no library in this process, since a kernel may do to its memory what it likes.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from metalhost import build_cache
from metalhost.compiler import Compiler, compiler
from metalhost.compiler_errors import problems
from metalhost.kernel_text import KernelText
from metalhost.problem import KernelTextError
from metalhost.settings import Mode
from metalhost.translation import unit_to_run

NATIVE = Path(__file__).parent / "native"
MSL = NATIVE / "msl"
_RUNTIME_FLAGS = (
    "-std=c++20",
    "-O2",
    "-g1",
    "-gdwarf-4",
    "-fPIE",
    "-w",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-omit-frame-pointer",
    "-U_FORTIFY_SOURCE",
)
_LINK_FLAGS = ("-pie", "-nodefaultlibs", "-lm", "-lc", "-lgcc")


def program(text: KernelText, mode: Mode) -> Path:
    """The path of the program.

    Raises:
        CompilerError: if there is no compiler.
        KernelTextError: if it does not take the text.
    """
    with_ = compiler()
    translated = unit_to_run(text)
    flags = with_.flags(mode)

    def make(scratch: Path) -> Path:
        unit, kernel = scratch / "kernel.cpp", scratch / "kernel.o"
        unit.write_text(translated, encoding="utf-8")
        library = (*with_.reads(_library(with_, mode)), "-I", str(MSL))
        said = with_.run([*flags, *library, "-c", str(unit), "-o", str(kernel)])
        if said:
            raise KernelTextError(text.name, [text.located(p) for p in problems(said)])
        # Without the sanitizers' flags, which would link their runtimes.
        return _linked(with_, [kernel, _runtime(with_)], scratch / "program", _LINK_FLAGS)

    parts = (str(with_), " ".join(flags), _native_text(), translated)
    return build_cache.cached(build_cache.key(*parts), make)


def _library(with_: Compiler, mode: Mode) -> Path:
    """The library of Metal, compiled for all kernels of a mode: half of a small kernel's time."""
    flags = with_.flags(mode)

    def make(scratch: Path) -> Path:
        to, header = scratch / "library", MSL / "kernel.h"
        said = with_.run([*flags, "-x", "c++-header", str(header), "-o", str(to)])
        if said:
            raise RuntimeError(f"metalhost's own {header.name} with {with_}:\n{said}")
        return to

    name = build_cache.key(str(with_), " ".join(flags), _native_text(), with_.holds_to(MSL))
    return build_cache.cached(f"{name}.h.gch", make)


def _runtime(with_: Compiler) -> Path:
    """All of the runtime as one object."""

    def make(scratch: Path) -> Path:
        sources = sorted((NATIVE / "runtime").glob("*.cpp"))
        objects = [scratch / f"{source.stem}.o" for source in sources]

        def build(source: Path, to: Path) -> None:
            said = with_.run([*_RUNTIME_FLAGS, "-c", str(source), "-o", str(to)])
            if said:
                raise RuntimeError(f"metalhost's own {source.name} with {with_}:\n{said}")

        with ThreadPoolExecutor() as pool:
            list(pool.map(build, sources, objects))
        return _linked(with_, objects, scratch / "runtime.o", ("-r", "-nostdlib"))

    name = build_cache.key(str(with_), " ".join(_RUNTIME_FLAGS), _native_text())
    return build_cache.cached(f"{name}.o", make)


def _linked(with_: Compiler, objects: list[Path], to: Path, flags: tuple[str, ...]) -> Path:
    said = with_.run([*map(str, objects), *flags, "-o", str(to)])
    if said:
        raise RuntimeError(f"linking with {with_}:\n{said}")
    return to


@functools.cache
def _native_text() -> str:
    """All that a program is built from besides its kernel."""
    files = sorted(path for path in NATIVE.rglob("*") if path.is_file())
    return "".join(f"{path.relative_to(NATIVE)}\n{path.read_text()}" for path in files)
