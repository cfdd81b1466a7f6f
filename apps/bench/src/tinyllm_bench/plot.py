"""A report for eyes."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tinyllm_bench.errors import BenchError
from tinyllm_bench.report import Report
from tinyllm_bench.result import Result
from tinyllm_bench.tables import heading, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW, _HEADING = 0.22, 1.2  # inches


def check_plot(path: Path) -> None:
    """Refuse, before anything is measured, an image that could not be written.

    Raises:
        BenchError: if matplotlib is missing, or there is no such folder.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise BenchError(
            "--plot needs matplotlib, which is not installed: pip install 'tinyllm-bench[plot]'"
        )
    if not path.parent.is_dir():
        raise BenchError(f"--plot: there is no folder {path.parent}: make it first")


def draw_plot(report: Report, path: Path) -> None:
    """Write the image.

    Raises:
        OSError: if the file cannot be written.
    """
    figure_of(report).savefig(path, dpi=120)


def figure_of(report: Report) -> "Figure":
    """Draw tokens a second, and how near each operation comes to the machine's limit."""
    from matplotlib.figure import Figure  # 0.3 s, for this option alone

    models = report.of(lambda result: result.what == "model")
    operations = report.of(lambda result: result.what != "model" and result.regime != "batch")
    labels = list(dict.fromkeys(map(_label, operations)))
    names = list(dict.fromkeys(result.by for result in report.results))
    rows = _ROW * len(labels) * max(1, len(names)) * 0.6 + _HEADING if labels else 0.0
    heights = [2.6] * bool(models) + [rows] * bool(labels)
    figure = Figure(figsize=(9, sum(heights) + _HEADING), layout="constrained")
    figure.suptitle("\n".join(heading(report)), fontsize=8)
    grid = figure.add_gridspec(len(heights) or 1, 2, height_ratios=heights or [1])
    colors = {name: f"C{i}" for i, name in enumerate(names)}
    if models:
        for column, regime in enumerate(("prefill", "decode")):
            chosen = [result for result in models if result.regime == regime]
            if chosen:
                _draw_speeds(figure.add_subplot(grid[0, column]), report, chosen, colors)
    if labels:
        _draw_shares(figure.add_subplot(grid[-1, :]), report, operations, labels, colors)
    return figure


def _draw_speeds(
    axes: "Axes", report: Report, results: Sequence[Result], colors: dict[str, str]
) -> None:
    """One bar for each program."""
    # A peer's name has its format after a space: beside its neighbor's it is too long for a line.
    names = [result.by.replace(" ", "\n") for result in results]
    speeds = [result.tokens_per_second for result in results]
    bars = axes.bar(names, speeds, color=[colors[result.by] for result in results])
    axes.bar_label(bars, labels=[number(speed) for speed in speeds], fontsize=8)
    axes.set_title(f"{results[0].regime}, {results[0].operand}: tokens/s", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.margins(y=0.15)
    if report.ceilings is not None:
        limit = results[0].tokens / report.ceilings.limit(results[0].cost)
        axes.set_xlabel(f"the machine's limit: {number(limit)} tokens/s", fontsize=8)


def _draw_shares(
    axes: "Axes",
    report: Report,
    results: Sequence[Result],
    labels: Sequence[str],
    colors: dict[str, str],
) -> None:
    """A group of bars for each operation, the first one on top."""
    names = list(dict.fromkeys(result.by for result in results))
    height = 0.8 / len(names)
    for place, name in enumerate(names):
        chosen = [result for result in results if result.by == name]
        rows = [labels.index(_label(result)) + place * height for result in chosen]
        values = [_percent_of_limit(report, result) for result in chosen]
        axes.barh(rows, values, height, color=colors[name], label=name)
    middle = 0.4 - height / 2
    axes.set_yticks([row + middle for row in range(len(labels))], labels, fontsize=7)
    axes.set_ylim(len(labels), -0.6)
    axes.set_xscale("log")
    axes.set_xlabel("percent of the speed that the machine's ceilings allow", fontsize=8)
    axes.axvline(100, color="black", linewidth=0.8)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8, loc="upper right")


def _percent_of_limit(report: Report, result: Result) -> float:
    """Of the roofline's time; without ceilings there is none to show."""
    if report.ceilings is None:
        return 0.0
    return 100 * report.ceilings.limit(result.cost) / result.samples.median


def _label(result: Result) -> str:
    return f"{result.what} {result.operand}, {result.regime}"
