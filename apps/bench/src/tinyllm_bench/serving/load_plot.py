"""Servers under load, for eyes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tinyllm_bench.serving.figures import Figures
from tinyllm_bench.serving.load import Load

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PERCENTILES = (("p50", "-"), ("p95", "--"), ("p99", ":"))


def draw_load(title: str, load: Load, figures: Sequence[Figures], path: Path) -> None:
    """Draw tokens a second, and how long clients wait for the first and for each further token.

    One rate is drawn as bars, several as curves over the rate.

    Args:
        title: the machine and the model.
        load: what all loads have in common.
        figures: of each server and rate.
        path: the image.

    Raises:
        OSError: if the file cannot be written.
    """
    from matplotlib.figure import Figure  # 0.3 s, for this option alone

    image = Figure(figsize=(9, 3.6), layout="constrained")
    shape = f"{load.prompt_words} words of prompt, {load.answer_tokens} tokens of answer"
    image.suptitle(f"{title}\n{load.requests} requests, {shape}", fontsize=8)
    draw = _draw_curves if len({each.rate for each in figures}) > 1 else _draw_bars
    draw(image.subplots(1, 3), figures)
    image.savefig(path, dpi=120)


def _draw_bars(panels: "Sequence[Axes]", figures: Sequence[Figures]) -> None:
    """A group of bars for each server."""
    throughput, first, between = panels
    names = [each.name for each in figures]
    throughput.bar(names, [each.tokens_per_second for each in figures])
    throughput.set_title("tokens/s", fontsize=9)
    for axes, title, chosen in (
        (first, "first token, ms", [each.first_token for each in figures]),
        (between, "between tokens, ms", [each.between_tokens for each in figures]),
    ):
        axes.set_title(title, fontsize=9)
        for place, (label, width) in enumerate((("p99", 0.8), ("p95", 0.55), ("p50", 0.3))):
            heights = [percentiles[2 - place] * 1e3 for percentiles in chosen]
            axes.bar(names, heights, width, label=label)
        axes.legend(fontsize=7)
    for axes in panels:
        axes.tick_params(labelsize=8)


def _draw_curves(panels: "Sequence[Axes]", figures: Sequence[Figures]) -> None:
    """A color for each server, a kind of line for each percentile."""
    throughput, first, between = panels
    answered = [each for each in figures if each.answered]  # a zero has no place on a log scale
    for place, name in enumerate(dict.fromkeys(each.name for each in answered)):
        chosen = sorted((f for f in answered if f.name == name), key=lambda each: each.rate)
        rates, color = [each.rate for each in chosen], f"C{place}"
        speeds = [each.tokens_per_second for each in chosen]
        throughput.plot(rates, speeds, marker=".", color=color, label=name)
        for rank, (percentile, style) in enumerate(_PERCENTILES):
            label = "" if place else percentile  # the same for all servers
            for axes, waits in (
                (first, [each.first_token[rank] * 1e3 for each in chosen]),
                (between, [each.between_tokens[rank] * 1e3 for each in chosen]),
            ):
                axes.plot(rates, waits, style, marker=".", color=color, label=label)
    for axes, title in (
        (throughput, "tokens/s"),
        (first, "first token, ms"),
        (between, "between tokens, ms"),
    ):
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("requests a second", fontsize=8)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8)
        if answered:
            axes.legend(fontsize=6)
