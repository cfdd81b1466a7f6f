"""Image of `tools/cpu_kernels`: tokens per second beside those of other programs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cpu_kernels.table import CASES, speeds
from tinyllm_bench.errors import BenchError
from tinyllm_bench.report.tables import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW, _HEADING = 0.42, 1.3  # inches
_COLORS = {"cpu": "C0", "cpu-int8": "C3", "llama.cpp": "C1", "openvino": "C2"}


def figure_of_kernels(document: Mapping[str, Any]) -> "Figure":
    """Draw a panel for each instruction set, with a group of bars for each case."""
    from matplotlib.figure import Figure

    parts = document["parts"]
    names = dict.fromkeys(name.split("/")[0] for name in parts)
    found = {isa: rows for isa in names if (rows := _rows(parts, isa))}
    if not found:
        raise BenchError("the document has no speeds of a model")
    counts = [len(rows) for rows in found.values()]
    height = _ROW * sum(counts) + _HEADING * len(found)
    figure = Figure(figsize=(9, height), layout="constrained")
    documents = [each for part in parts.values() for each in part["documents"]]
    machines = [each["machine"] for each in documents if "results" in each]
    where = f"{machines[0]['cpu']}, {machines[0]['cores']} cores"
    figure.suptitle(f"{where}; Qwen3-0.6B, 4 bits of group 64, bfloat16, unless named", fontsize=8)
    panels = figure.subplots(len(found), 1, squeeze=False, height_ratios=counts)
    for axes, (isa, rows) in zip(panels[:, 0], found.items(), strict=True):
        axes.set_title(f"{isa}: tokens/s", fontsize=9)
        _draw(axes, rows)
    return figure


def _rows(parts: Mapping[str, Any], isa: str) -> list[tuple[str, dict[str, dict[str, float]]]]:
    """Return the label and the speeds of each case that was measured."""
    found = [(case.label, speeds(parts.get(f"{isa}/{case.part}"), case.regime)) for case in CASES]
    return [(label, each) for label, each in found if each]


def _draw(axes: "Axes", rows: list[tuple[str, dict[str, dict[str, float]]]]) -> None:
    """Draw a bar for each program, the first case on top."""
    height = 0.8 / len(_COLORS)
    for index, (name, color) in enumerate(_COLORS.items()):
        places = [i + index * height for i, (_, found) in enumerate(rows) if name in found]
        values = [found[name]["speed"] for _, found in rows if name in found]
        if not values:
            continue
        bars = axes.barh(places, values, height, color=color, label=name)
        axes.bar_label(bars, labels=[number(value) for value in values], fontsize=6, padding=2)
    axes.set_yticks([i + height for i in range(len(rows))], [label for label, _ in rows])
    axes.set_ylim(len(rows) - 0.2, -0.4)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.margins(x=0.1)
    axes.tick_params(labelsize=7)
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=7, loc="lower right")
