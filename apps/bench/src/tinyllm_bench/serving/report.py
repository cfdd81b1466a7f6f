"""Servers beside each other: as a table, as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from tinyllm_bench.machine import Machine
from tinyllm_bench.serving.figures import Figures, Percentiles
from tinyllm_bench.serving.load import Load


def print_figures(machine: Machine, model: str, figures: Sequence[Figures]) -> None:
    """Write a table to stdout."""
    table = Table(box=None, header_style="bold")
    table.add_column("server")
    for heading in ("a second", "answers", "tokens/s", "cached", "first token p50/p95/p99 ms"):
        table.add_column(heading, justify="right")
    table.add_column("between tokens p50/p95/p99 ms", justify="right")
    for each in figures:
        answers = f"{each.answered}" + (f" ({each.failed} failed)" if each.failed else "")
        cached = each.cached_tokens / max(each.prompt_tokens, 1)
        table.add_row(
            each.name,
            f"{each.rate:g}" if each.rate else "at once",
            answers,
            f"{each.tokens_per_second:,.1f}",
            f"{cached:.0%}",
            _milliseconds(each.first_token),
            _milliseconds(each.between_tokens),
        )
    console = Console(width=120)
    console.print(f"{machine}; {model}\n", highlight=False)
    console.print(table)


def as_json(
    machine: Machine,
    model: str,
    loads: Sequence[Load],
    figures: Sequence[Figures],
    notices: Sequence[str],
) -> str:
    """One document; times in seconds."""
    document = {
        "machine": asdict(machine),
        "model": model,
        "loads": [asdict(load) for load in loads],
        "servers": [asdict(each) for each in figures],
        "notices": list(notices),
    }
    return json.dumps(document, indent=2)


def _milliseconds(percentiles: Percentiles) -> str:
    return " / ".join(f"{seconds * 1e3:,.0f}" for seconds in percentiles)
