"""Servers beside each other: as a table, as JSON, as an image."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tinyllm_bench.machine import Machine
from tinyllm_bench.serving.figures import Figures
from tinyllm_bench.serving.load import Load


def print_figures(figures: Sequence[Figures]) -> None:
    """Write a table to stdout."""
    table = Table(box=None, header_style="bold")
    table.add_column("server")
    for heading in ("answers", "tokens/s", "cached", "first token p50/p95/p99 ms"):
        table.add_column(heading, justify="right")
    table.add_column("between tokens p50/p95/p99 ms", justify="right")
    for each in figures:
        answers = f"{each.answered}" + (f" ({each.failed} failed)" if each.failed else "")
        cached = each.cached_tokens / max(each.prompt_tokens, 1)
        table.add_row(
            each.name,
            answers,
            f"{each.tokens_per_second:,.1f}",
            f"{cached:.0%}",
            _milliseconds(each.first_token),
            _milliseconds(each.between_tokens),
        )
    Console(width=120).print(table)


def as_json(
    machine: Machine, model: str, load: Load, figures: Sequence[Figures], notices: Sequence[str]
) -> str:
    """One document; times in seconds."""
    document = {
        "machine": asdict(machine),
        "model": model,
        "load": asdict(load),
        "servers": [asdict(each) for each in figures],
        "notices": list(notices),
    }
    return json.dumps(document, indent=2)


def draw_figures(load: Load, figures: Sequence[Figures], path: Path) -> None:
    """Write the image.

    Raises:
        OSError: if the file cannot be written.
    """
    from matplotlib.figure import Figure  # 0.3 s, for this option alone

    image = Figure(figsize=(9, 3.2), layout="constrained")
    image.suptitle(
        f"{load.requests} requests, {load.rate:g} a second, {load.prompt_words} words of prompt, "
        f"{load.answer_tokens} tokens of answer",
        fontsize=9,
    )
    throughput, first, between = image.subplots(1, 3)
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
    image.savefig(path, dpi=120)


def _milliseconds(percentiles: tuple[float, float, float]) -> str:
    return " / ".join(f"{seconds * 1e3:,.0f}" for seconds in percentiles)
