"""A simpler text of a kernel, as a page of the documentation has it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from cases import CASES
from metalhost import SWEEP, using
from planting import planted

# The kernels that have a file's text in them, where there are more than the one of its name.
_ATTENTION = ("packed_keys", "paged_attention")
_KERNELS = {
    "matrix_vector": ("matrix_vector", "expert_linear"),
    "decode": ("decode", *_ATTENTION),
    "tiles": ("tiles", *_ATTENTION),
    "packed_rows": ("packed_keys",),
    "requests": ("requests", "paged_attention"),
}
_BLOCK = re.compile(r"```metal\n// In place of `([\w/.]+)`: (.+?)\n(.+?)```", re.DOTALL)


@dataclass(frozen=True)
class Rung:
    """A block of Metal on a page, which has the functions of a file, with their parameters.

    Attributes:
        file: the file, relative to the package's folder of Metal kernels.
        title: what is new.
        text: what stands in the file's place.
    """

    file: str
    title: str
    text: str

    def climb(self) -> None:
        """Run the cases of the kernels that have the file by all settings of metalhost's sweep.

        Raises:
            AssertionError: if a number is wrong.
            KernelFaultError: if metalhost finds a fault.
        """
        folder = resources.files("tinyllm_kernels.metal")
        last = folder.joinpath(self.file).read_text(encoding="utf-8")
        name = Path(self.file).stem
        for kernel in _KERNELS.get(name, (name,)):
            with planted(last, self.text):
                for settings in SWEEP:
                    with using(settings):
                        CASES[kernel]()

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.file}: {self.title}"


def rungs(page: Path) -> Iterator[Rung]:
    """Those of a page, in order: the first line of a block says whose place it takes."""
    for file, title, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        yield Rung(file, title, text)
