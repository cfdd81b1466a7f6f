"""Optimization steps: simpler versions of a kernel on the pages of the documentation."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from cases import CASES
from metalhost import Settings, using
from planting import planted

# Cases of a file that is part of other kernels than the one of its name.
_ATTENTION = ("packed_keys", "paged_attention")
_KERNELS = {
    "matrix_vector": ("matrix_vector", "expert_linear"),
    "matrix_product": ("matrix_product", "expert_prefill"),
    "decode": ("decode", *_ATTENTION),
    "tiles": ("tiles", *_ATTENTION),
    "packed_rows": ("packed_keys",),
    "sequences": ("sequences", "paged_attention"),
}
_BLOCK = re.compile(r"```cpp\n// In place of `([\w/.]+)`: (.+?)\n(.+?)```", re.DOTALL)


@dataclass(frozen=True)
class Step:
    """A block of Metal on a page that has the functions of a file, with the same parameters.

    Attributes:
        file: the file, relative to the package's folder of Metal kernels.
        title: the change since the previous step.
        text: replacement of the file's text.
    """

    file: str
    title: str
    text: str

    def run(self, sweep: Sequence[Settings]) -> None:
        """Run the cases of all kernels that include the file, under all settings of `sweep`.

        Raises:
            AssertionError: if a number is wrong.
            KernelFaultError: if metalhost finds a fault.
        """
        folder = resources.files("tinyllm_kernels.metal")
        text = folder.joinpath(self.file).read_text(encoding="utf-8")
        path = Path(self.file)
        name = path.parent.name if path.stem == "kernel" else path.stem
        for kernel in _KERNELS.get(name, (name,)):
            with planted(text, self.text):
                for settings in sweep:
                    with using(settings):
                        CASES[kernel]()

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.file}: {self.title}"


def steps(page: Path) -> Iterator[Step]:
    """Yield the steps of a page in order. The first line of a block names the replaced file."""
    for file, title, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        yield Step(file, title, text)
