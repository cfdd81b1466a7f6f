"""Lookup of addresses of a program in its debug information, which gives lines of the kernel."""

import functools
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from metalhost.compilation.compiler import Compiler, compiler

_FRAME = re.compile(r"<(source|header)>:(\d+)")


def lines(program: Path, addresses: Iterable[int]) -> dict[int, list[tuple[str, int]]]:
    """Return the lines of the kernel for each return address, as pairs of part and line.

    The lines of an address begin with the innermost function, and inlined callers follow. An
    address in the runtime or in the headers of Metal's library has no lines. Without addr2line,
    which is part of binutils, no address has lines.
    """
    wanted = sorted(set(addresses))
    tool = _addr2line(compiler())
    if not wanted or tool is None:
        return {}
    # A return address points to the instruction after the call.
    calls = [f"{address - 1:#x}" for address in wanted]
    result = subprocess.run(
        [tool, "-e", str(program), "-a", "-i", *calls],
        capture_output=True,
        text=True,
        check=False,
    )
    blocks = re.split(r"^0x[0-9a-f]+\n", result.stdout, flags=re.MULTILINE)[1:]
    return {
        address: [(part, int(line)) for part, line in _FRAME.findall(block)]
        for address, block in zip(wanted, blocks, strict=False)
    }


@functools.cache
def _addr2line(cxx: Compiler) -> str | None:
    """Return the path of addr2line for the compiler's target, or None."""
    for program in (f"{cxx.target}-addr2line", "addr2line", "llvm-addr2line"):
        found = shutil.which(program)
        if found is not None:
            return found
    return None
