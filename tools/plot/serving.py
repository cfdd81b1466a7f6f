"""Image of the results of `bench serve`: servers under load."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
"""A result of the JSON document: a server at one rate."""

_PERCENTILES = (("p50", "-", 0.3), ("p95", "--", 0.55), ("p99", ":", 0.8))
_LATENCIES = {"first_token": "first token, ms", "between_tokens": "between tokens, ms"}


def figure_of_servers(document: Mapping[str, Any]) -> "Figure":
    """Draw tokens per second and latencies: bars for one rate, curves over several rates."""
    from matplotlib.figure import Figure

    rows, load, machine = document["servers"], document["loads"][0], document["machine"]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}"
    shape = f"{load['prompt_words']} words of prompt, {load['answer_tokens']} tokens of answer"
    title = f"{where}; {document['model']}\n{load['requests']} requests, {shape}"
    figure.suptitle(title, fontsize=8)
    panels = figure.subplots(1, 3)
    for axes, name in zip(panels, ("tokens/s", *_LATENCIES.values()), strict=True):
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=8)
    draw = _draw_curves if len({row["rate"] for row in rows}) > 1 else _draw_bars
    draw(panels, rows)
    return figure


def _draw_bars(panels: "Sequence[Axes]", rows: Sequence[Row]) -> None:
    """Draw a group of bars for each server."""
    throughput, *latencies = panels
    names = [row["name"] for row in rows]
    throughput.bar(names, [row["tokens_per_second"] for row in rows])
    for axes, key in zip(latencies, _LATENCIES, strict=True):
        for place, (label, _, width) in reversed(list(enumerate(_PERCENTILES))):
            axes.bar(names, [_milliseconds(row[key], place) for row in rows], width, label=label)
        axes.legend(fontsize=7)


def _draw_curves(panels: "Sequence[Axes]", rows: Sequence[Row]) -> None:
    """Draw a color for each server, a line style for each percentile."""
    throughput, *latencies = panels
    answered = [row for row in rows if row["answered"]]  # a log scale has no zero
    for index, name in enumerate(dict.fromkeys(row["name"] for row in answered)):
        chosen = sorted((row for row in answered if row["name"] == name), key=lambda r: r["rate"])
        rates, color = [row["rate"] for row in chosen], f"C{index}"
        speeds = [row["tokens_per_second"] for row in chosen]
        throughput.plot(rates, speeds, marker=".", color=color, label=name)
        for axes, key in zip(latencies, _LATENCIES, strict=True):
            for place, (percentile, style, _) in enumerate(_PERCENTILES):
                label = "" if index else percentile  # one legend for all servers
                times = [_milliseconds(row[key], place) for row in chosen]
                # A log scale without any number is an error, one without lines is not.
                if not all(map(math.isnan, times)):
                    axes.plot(rates, times, style, marker=".", color=color, label=label)
    for axes in panels:
        axes.set_xlabel("requests a second", fontsize=8)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=6)


def _milliseconds(percentiles: Sequence[float] | None, place: int) -> float:
    """Return one of the percentiles; NaN, which is not drawn, if no time was measured."""
    return math.nan if percentiles is None else 1e3 * percentiles[place]
