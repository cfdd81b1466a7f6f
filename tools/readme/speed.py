"""The bar chart of README.md, from docs/measured/cpu-kernels.json."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cpu_kernels.measure import Document
from cpu_kernels.table import CASES, LLAMA, OPENVINO, OURS, speeds
from learn.svg import Drawing
from tinyllm_bench.report.tables import number

RUNS = Path(__file__).parents[2] / "docs" / "measured" / "cpu-kernels.json"
PROGRAMS = {
    OURS: ("tinyllm", "strong"),
    LLAMA: ("llama.cpp", "amber"),
    OPENVINO: ("OpenVINO", "green"),
}

_ISA = "amx"
_SHOWN = (
    "prompt of 16",
    "prompt of 512",
    "decode, empty cache",
    "8 bits: decode, empty cache",
    "bfloat16: prompt of 512",
    "bfloat16: decode, empty cache",
    "mxfp4: decode, empty cache",
    "pico: prompt of 128",
    "pico: decode, after 128 tokens",
)


@dataclass(frozen=True)
class Group:
    """The tokens per second of a case, by program."""

    label: str
    found: dict[str, float]

    @property
    def is_lost(self) -> bool:
        """True if another program is faster."""
        return self.found[OURS] < max(self.found.values())


@cache
def all_groups() -> tuple[Group, ...]:
    """Return every case in which another program was measured, of the fastest instruction set."""
    return tuple(_measured())


def _measured() -> Iterator[Group]:
    document = Document.read(RUNS)
    for case in CASES:
        rows = speeds(document.parts.get(f"{_ISA}/{case.part}"), case.regime)
        found = {name: rows[name]["speed"] for name in PROGRAMS if name in rows}
        if len(found) > 1:
            yield Group(case.label, found)


def speed_picture() -> str:
    """Return bars in groups, each scaled to its fastest program."""
    groups = [group for group in all_groups() if group.label in _SHOWN]
    height = 62 + sum(38 + 17 * len(group.found) for group in groups)
    names = ", ".join(name for name, _ in PROGRAMS.values())
    drawing = Drawing(height, "Tokens per second", f"{names} on two cores of an Intel Xeon")
    x = 14.0
    for name, kind in PROGRAMS.values():
        drawing.rect(x, 15, 13, 13, kind, radius=3)
        drawing.text(x + 18, 26, name, "small ink", "start")
        x += 92
    drawing.text(426, 26, "tokens/s", "small soft", "end")
    y = 44.0
    for group in groups:
        drawing.text(14, y + 13, group.label, "small ink bold", "start")
        y += 20
        for name, speed in group.found.items():
            length = 352 * speed / max(group.found.values())
            drawing.rect(14, y, length, 14, PROGRAMS[name][1], radius=2)
            drawing.text(20 + length, y + 11.5, number(speed), "small soft", "start")
            y += 17
        y += 18
    drawing.text(14, height - 10, "4 bits of group 64 unless named", "small soft", "start")
    return drawing.svg()
