"""Image of the results of `bench`: tokens per second, and shares of the machine's limit."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinyllm_bench.report.tables import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
"""A result of the JSON document."""

_ROW, _HEADING = 0.22, 1.2  # inches


def figure_of_bench(document: Mapping[str, Any]) -> "Figure":
    """Draw tokens per second of models, and each operation's share of the machine's limit."""
    from matplotlib.figure import Figure

    results = document["results"]
    models = [row for row in results if row["what"] == "model"]
    operations = [row for row in results if row["what"] != "model" and row["regime"] != "batch"]
    labels = list(dict.fromkeys(map(_label, operations)))
    names = list(dict.fromkeys(row["by"] for row in results))
    rows = _ROW * len(labels) * max(1, len(names)) * 0.6 + _HEADING if labels else 0.0
    heights = [2.6] * bool(models) + [rows] * bool(labels)
    figure = Figure(figsize=(9, sum(heights) + _HEADING), layout="constrained")
    figure.suptitle("\n".join(_heading(document)), fontsize=8)
    grid = figure.add_gridspec(len(heights) or 1, 2, height_ratios=heights or [1])
    colors = {name: f"C{i}" for i, name in enumerate(names)}
    for column, regime in enumerate(("prefill", "decode")):
        chosen = [row for row in models if row["regime"] == regime]
        if chosen:
            _draw_speeds(figure.add_subplot(grid[0, column]), chosen, colors)
    if labels:
        _draw_shares(figure.add_subplot(grid[-1, :]), operations, labels, colors)
    return figure


def _heading(document: Mapping[str, Any]) -> list[str]:
    """Return lines for the machine, its ceilings and the model."""
    machine, ceilings, model = document["machine"], document["ceilings"], document["model"]
    lines = [f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}"]
    if ceilings is not None:
        lines.append(f"reads {number(ceilings['read_gbps'])} GB/s ({ceilings['read_how']})")
        lines.append(f"computes {number(ceilings['tflops'])} TFLOP/s ({ceilings['tflops_how']})")
    size = f"{model['bytes'] / 1e6:,.0f} MB"
    return [*lines, f"{model['name']}: {size} of weights, {model['weights']}"]


def _draw_speeds(axes: "Axes", rows: Sequence[Row], colors: dict[str, str]) -> None:
    """Draw one bar for each implementation."""
    # "llama.cpp Q4_0" on one line would overlap the name beside it.
    names = [row["by"].replace(" ", "\n") for row in rows]
    speeds = [row["tokens_per_second"] for row in rows]
    bars = axes.bar(names, speeds, color=[colors[row["by"]] for row in rows])
    axes.bar_label(bars, labels=[number(speed) for speed in speeds], fontsize=8)
    first = rows[0]
    axes.set_title(f"{first['regime']}, {first['operand']}: tokens/s", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.margins(y=0.15)
    if "share_of_limit" in first:
        limit = first["tokens_per_second"] / first["share_of_limit"]
        axes.set_xlabel(f"the machine's limit: {number(limit)} tokens/s", fontsize=8)


def _draw_shares(
    axes: "Axes", rows: Sequence[Row], labels: Sequence[str], colors: dict[str, str]
) -> None:
    """Draw a group of bars for each operation, the first operation on top."""
    names = list(dict.fromkeys(row["by"] for row in rows))
    height = 0.8 / len(names)
    for index, name in enumerate(names):
        chosen = [row for row in rows if row["by"] == name]
        places = [labels.index(_label(row)) + index * height for row in chosen]
        values = [100 * row.get("share_of_limit", 0.0) for row in chosen]
        axes.barh(places, values, height, color=colors[name], label=name)
    middle = 0.4 - height / 2
    axes.set_yticks([row + middle for row in range(len(labels))], labels, fontsize=7)
    axes.set_ylim(len(labels), -0.6)
    axes.set_xscale("log")
    axes.set_xlabel("percent of the speed that the machine's ceilings allow", fontsize=8)
    axes.axvline(100, color="black", linewidth=0.8)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8, loc="upper right")


def _label(row: Row) -> str:
    return f"{row['what']} {row['operand']}, {row['regime']}"
