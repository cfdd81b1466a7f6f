"""Report of a roofline: a table, JSON and an image."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from roofline.kernels import Kernel
from roofline.limits import Limits, intensity
from tinyllm_bench.machine import Machine
from tinyllm_bench.report.json_text import json_text
from tinyllm_bench.report.report import result_row
from tinyllm_bench.report.tables import duration, new_table, number, percent, report_console

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = "tinyllm-roofline/1"

_MARGIN = 2.0  # factor from the outermost points to the ends of the axis
# A peak has its label below its line if the next higher peak is less than this many times as high.
_CROWDED = 1.15


def heading(machine: Machine, name: str, limits: Limits) -> list[str]:
    """Return lines for the machine, the model and the limits."""
    peaks = [f"{number(peak)} TFLOP/s ({how})" for how, peak in limits.peaks.items()]
    ceilings = limits.ceilings
    return [
        f"{machine}; {name}",
        f"reads {number(ceilings.read_gbps)} GB/s ({ceilings.read_how})",
        f"computes {', '.join(peaks)}",
    ]


def print_roofline(title: Sequence[str], limits: Limits, kernels: Sequence[Kernel]) -> None:
    """Write a table to stdout."""
    columns = ("tokens", "time", "GB/s", "FLOP/byte", "TFLOP/s", "of the roof")
    table = new_table(("kernel",), columns)
    for kernel in kernels:
        table.add_section()
        for i, row in enumerate(kernel.results):
            cost, median = row.cost, row.samples.median
            table.add_row(
                f"{kernel.name}, {row.case.operand}" if i == 0 else "",
                str(row.case.tokens),
                duration(median),
                number(cost.gbps(median)),
                number(intensity(cost)),
                number(cost.tflops(median)),
                percent(limits.share(cost, median)),
            )
    console = report_console()
    for line in title:
        console.print(line)
    console.print()
    console.print(table)


def json_report(machine: Machine, name: str, limits: Limits, kernels: Sequence[Kernel]) -> str:
    """Return a JSON document with the raw samples.

    Times are in seconds, sizes in bytes, and intensities in FLOP per byte.
    """
    document = {
        "format": FORMAT,
        "machine": asdict(machine),
        "model": name,
        "ceilings": asdict(limits.ceilings),
        "peaks": dict(limits.peaks),
        "curves": [
            {
                "name": kernel.name,
                "points": [
                    result_row(limits.ceilings, row)
                    | {
                        "intensity": intensity(row.cost),
                        "share_of_roof": limits.share(row.cost, row.samples.median),
                    }
                    for row in kernel.results
                ],
            }
            for kernel in kernels
        ],
    }
    return json_text(document)


def draw_roofline(
    title: Sequence[str], limits: Limits, kernels: Sequence[Kernel], path: Path
) -> None:
    """Draw TFLOP/s over arithmetic intensity. The number at a point is its number of tokens.

    Each kernel has at least one result. The kernels come in pairs: one for decoded tokens, then one
    for prompts.

    Raises:
        OSError: if the file cannot be written.
    """
    from matplotlib.figure import Figure  # takes 0.3 s, and only --plot needs it

    image = Figure(figsize=(9, 6), layout="constrained")
    image.suptitle("\n".join(title), fontsize=8)
    axes = image.subplots()
    for i, kernel in enumerate(kernels):
        # The two kernels of a pair have the same color and different markers.
        _draw_kernel(axes, kernel, f"C{i // 2}", "o" if i % 2 == 0 else "s")
    _draw_limits(axes, limits, kernels)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("operations for each byte that has to be moved", fontsize=8)
    axes.set_ylabel("TFLOP/s", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="lower right")
    image.savefig(path, dpi=120)


def _draw_kernel(axes: "Axes", kernel: Kernel, color: str, marker: str) -> None:
    points = [
        (intensity(row.cost), row.cost.tflops(row.samples.median), row.case.tokens)
        for row in kernel.results
    ]
    across, up, tokens = zip(*points, strict=True)
    style = "-" if marker == "o" else "--"
    axes.plot(across, up, style, marker=marker, ms=4, color=color, label=kernel.name, linewidth=0.9)
    for x, y, count in zip(across, up, tokens, strict=True):
        axes.annotate(
            str(count), (x, y), (0, -9), textcoords="offset points", fontsize=6, color=color
        )


def _draw_limits(axes: "Axes", limits: Limits, kernels: Sequence[Kernel]) -> None:
    """Draw the roof, and each peak as a horizontal line.

    The roof rises with the bandwidth of the memory up to the highest peak. The line of a peak
    begins at the intensity where the roof reaches that peak.
    """
    found = [intensity(row.cost) for kernel in kernels for row in kernel.results]
    left, right = min(found) / _MARGIN, max(found) * _MARGIN
    across = np.geomspace(left, right, 200)
    axes.plot(across, [limits.at(x) for x in across], color="black", linewidth=1.2)
    rate = limits.ceilings.read_gbps
    position = (left, limits.at(left))
    axes.annotate(f"{number(rate)} GB/s", position, (4, 12), textcoords="offset points", fontsize=7)
    ordered = sorted(limits.peaks.items(), key=lambda item: item[1])
    for i, (name, peak) in enumerate(ordered):
        ridge = 1e3 * peak / rate  # TFLOP/s over GB/s, in FLOP per byte
        axes.plot([ridge, max(ridge, right)], [peak, peak], color="black", linewidth=0.8)
        crowded = i + 1 < len(ordered) and ordered[i + 1][1] < _CROWDED * peak
        axes.annotate(
            f"{number(peak)} TFLOP/s, {name}",
            (right, peak),
            (0, -9 if crowded else 3),
            textcoords="offset points",
            fontsize=7,
            ha="right",
        )
