"""A roofline, for eyes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tinyllm_bench.roofline.curve import Curve
from tinyllm_bench.roofline.roofs import Roofs, intensity
from tinyllm_bench.tables import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARGIN = 2.0  # as far as the axes go beyond the points, as a factor
_CROWDED = 1.15  # two peaks that are closer: the name of the lower one stands below its line


def draw_roofline(title: Sequence[str], roofs: Roofs, curves: Sequence[Curve], path: Path) -> None:
    """Draw operations a second over operations a byte, below what the machine allows.

    Args:
        title: the machine and the model.
        roofs: its limits.
        curves: what was measured; the number beside a point is that of its tokens.
        path: the image.

    Raises:
        OSError: if the file cannot be written.
    """
    from matplotlib.figure import Figure  # 0.3 s, for this option alone

    image = Figure(figsize=(9, 6), layout="constrained")
    image.suptitle("\n".join(title), fontsize=8)
    axes = image.subplots()
    for place, curve in enumerate(curves):
        # A color for each form of the weights, which has two curves; a mark for each of these.
        _draw_curve(axes, curve, f"C{place // 2}", "o" if place % 2 == 0 else "s")
    _draw_roofs(axes, roofs, curves)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("operations for each byte that has to be moved", fontsize=8)
    axes.set_ylabel("TFLOP/s", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="lower right")
    image.savefig(path, dpi=120)


def _draw_curve(axes: "Axes", curve: Curve, color: str, mark: str) -> None:
    points = [
        (intensity(row.cost), row.cost.tflops(row.samples.median), row.tokens)
        for row in curve.results
    ]
    across, up, tokens = zip(*points, strict=True)
    style = "-" if mark == "o" else "--"
    axes.plot(across, up, style, marker=mark, ms=4, color=color, label=curve.name, linewidth=0.9)
    for x, y, count in zip(across, up, tokens, strict=True):
        axes.annotate(
            str(count), (x, y), (0, -9), textcoords="offset points", fontsize=6, color=color
        )


def _draw_roofs(axes: "Axes", roofs: Roofs, curves: Sequence[Curve]) -> None:
    """The slope of memory up to the highest peak, and a line for each peak from there on."""
    found = [intensity(row.cost) for curve in curves for row in curve.results]
    left, right = min(found) / _MARGIN, max(found) * _MARGIN
    across = np.geomspace(left, right, 200)
    axes.plot(across, [roofs.at(x) for x in across], color="black", linewidth=1.2)
    rate = roofs.ceilings.read_gbps
    axes.annotate(
        f"{number(rate)} GB/s",
        (left, roofs.at(left)),
        (4, 12),
        textcoords="offset points",
        fontsize=7,
    )
    ordered = sorted(roofs.peaks.items(), key=lambda item: item[1])
    for place, (name, peak) in enumerate(ordered):
        ridge = 1e3 * peak / rate
        axes.plot([ridge, max(ridge, right)], [peak, peak], color="black", linewidth=0.8)
        crowded = place + 1 < len(ordered) and ordered[place + 1][1] < _CROWDED * peak
        axes.annotate(
            f"{number(peak)} TFLOP/s, {name}",
            (right, peak),
            (0, -9 if crowded else 3),
            textcoords="offset points",
            fontsize=7,
            ha="right",
        )
