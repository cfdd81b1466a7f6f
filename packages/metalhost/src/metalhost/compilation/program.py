"""Program of a kernel: the compiled kernel and the runtime, linked. A program runs one launch.

A kernel may overwrite any memory of its process. It therefore runs in a process of its own, not in
a library that Python loads.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from metalhost.compilation import cache
from metalhost.compilation.compiler import Compiler, compiler
from metalhost.compilation.compiler_errors import problems
from metalhost.compilation.native_files import MSL, NATIVE, RUNTIME, contents
from metalhost.settings import Mode
from metalhost.text.kernel_text import KernelText
from metalhost.text.problem import KernelTextError
from metalhost.translation.translation_unit import unit_to_execute

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
_LINK_FLAGS = ("-pie", "-nodefaultlibs", "-lgcc_eh", "-lm", "-lc", "-lgcc")


def build_program(text: KernelText, mode: Mode) -> Path:
    """Return the path of the kernel's program, built or from the cache.

    Raises:
        CompilerError: if there is no compiler.
        KernelTextError: if the compiler rejects the text.
    """
    cxx = compiler()
    unit = unit_to_execute(text)
    flags = cxx.flags(mode)

    def build(scratch: Path) -> Path:
        source, kernel = scratch / "kernel.cpp", scratch / "kernel.o"
        source.write_text(unit, encoding="utf-8")
        library = (*cxx.precompiled_header_flags(_metal_library(cxx, mode)), "-I", str(MSL))
        output = cxx.run([*flags, *library, "-c", str(source), "-o", str(kernel)])
        if output:
            raise KernelTextError(text.name, [text.located(p) for p in problems(output)])
        # Linked without the sanitizers' flags, which would add the sanitizers' runtimes.
        return _link(cxx, [kernel, _runtime(cxx)], scratch / "program", _LINK_FLAGS)

    parts = (str(cxx), " ".join((*flags, *_RUNTIME_FLAGS, *_LINK_FLAGS)), contents(NATIVE), unit)
    return cache.get_or_build(cache.key(*parts), build)


def _metal_library(cxx: Compiler, mode: Mode) -> Path:
    """Return the precompiled headers of Metal's library.

    Precompilation halves the build time of a small kernel.
    """
    flags = cxx.flags(mode)

    def build(scratch: Path) -> Path:
        precompiled, header = scratch / "library", MSL / "kernel.h"
        output = cxx.run([*flags, "-x", "c++-header", str(header), "-o", str(precompiled)])
        if output:
            raise RuntimeError(f"cannot compile metalhost's {header.name} with {cxx}:\n{output}")
        return precompiled

    parts = (str(cxx), " ".join(flags), contents(NATIVE), cxx.precompiled_header_key(NATIVE))
    return cache.get_or_build(f"{cache.key(*parts)}.h.gch", build)


def _runtime(cxx: Compiler) -> Path:
    """Return the whole runtime as one object file."""

    def build(scratch: Path) -> Path:
        sources = sorted(RUNTIME.rglob("*.cpp"))
        objects = [scratch / f"{source.stem}.o" for source in sources]

        def compile_source(source: Path, target: Path) -> None:
            include = ("-I", str(RUNTIME))
            output = cxx.run([*_RUNTIME_FLAGS, *include, "-c", str(source), "-o", str(target)])
            if output:
                raise RuntimeError(
                    f"cannot compile metalhost's {source.name} with {cxx}:\n{output}"
                )

        with ThreadPoolExecutor() as pool:
            list(pool.map(compile_source, sources, objects))
        return _link(cxx, objects, scratch / "runtime.o", ("-r", "-nostdlib"))

    parts = (str(cxx), " ".join(_RUNTIME_FLAGS), contents(NATIVE))
    return cache.get_or_build(f"{cache.key(*parts)}.o", build)


def _link(cxx: Compiler, objects: list[Path], target: Path, flags: tuple[str, ...]) -> Path:
    output = cxx.run([*map(str, objects), *flags, "-o", str(target)])
    if output:
        raise RuntimeError(f"cannot link with {cxx}:\n{output}")
    return target
