"""From addresses in a program to lines of the kernel, by its debug information."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from metalhost.compiler import Compiler, compiler

_FRAME = re.compile(r"<(source|header)>:(\d+)")


def lines(program: Path, addresses: Iterable[int]) -> dict[int, list[tuple[str, int]]]:
    """Of each return address, the lines of the kernel it belongs to, inlined callers last.

    An address in the runtime or in the shim headers belongs to none. Without addr2line, which comes
    with the linker, all of them belong to none.
    """
    wanted = sorted(set(addresses))
    tool = _addr2line(compiler())
    if not wanted or tool is None:
        return {}
    # A return address is that of the next instruction.
    asked = {address: f"{address - 1:#x}" for address in wanted}
    done = subprocess.run(
        [tool, "-e", str(program), "-a", "-i", *asked.values()],
        capture_output=True,
        text=True,
        check=False,
    )
    blocks = re.split(r"^0x[0-9a-f]+\n", done.stdout, flags=re.MULTILINE)[1:]
    return {
        address: [(part, int(line)) for part, line in _FRAME.findall(block)]
        for address, block in zip(wanted, blocks, strict=False)
    }


@functools.cache
def _addr2line(with_: Compiler) -> str | None:
    """The one for the compiler's target."""
    for program in (f"{with_.target}-addr2line", "addr2line", "llvm-addr2line"):
        found = shutil.which(program)
        if found is not None:
            return found
    return None
