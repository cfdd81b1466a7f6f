"""Writes docs/measured/runs.md, the tables of all runs: `uv run tools/measured/runs.py`."""

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tinyllm_bench.report.tables import duration, number, percent

FOLDER = Path(__file__).parents[2] / "docs" / "measured"
PAGE = FOLDER / "runs.md"
HEAD = """# Tables of all runs

This page is generated from the JSON documents beside it by `uv run tools/measured/runs.py`.
[What it costs](../bench.md) explains how they are measured. Times are medians. *of read* and *of
peak* are shares of the ceilings of the machine that were measured in the same run.
"""

Document = Mapping[str, Any]


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for path in sorted(FOLDER.glob("*.json")):
        document = json.loads(path.read_text())
        if "parts" in document:  # of tools/cpu_kernels, which draws its own tables
            continue
        if "results" in document:
            lines = _bench(document)
        elif "curves" in document:
            lines = _roofline(document)
        elif "servers" in document:
            lines = _servers(document)
        else:
            lines = _engine(document)
        parts.append("\n".join([f"## {path.stem}", "", f"[JSON]({path.name})", "", *lines, ""]))
    return "\n".join(parts)


def _machine(document: Document) -> str:
    machine = document["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, MLX {machine['mlx']}"


def _table(*names: str) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield "|---" * 2 + "|---:" * (len(names) - 2) + "|"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _bench(document: Document) -> Iterator[str]:
    ceilings, model = document["ceilings"], document["model"]
    yield f"{_machine(document)}; {model['name']}, {model['weights']}."
    read, tflops = number(ceilings["read_gbps"]), number(ceilings["tflops"])
    yield f"The machine reads {read} GB/s and computes {tflops} TFLOP/s."
    yield ""
    yield from _table("case", "by", "time", "tokens/s", "GB/s", "of read", "TFLOP/s", "of peak")
    for row in document["results"]:
        is_model = row["what"] == "model"
        computes = row["tflops"] > 0
        yield _row(
            f"{row['what']} {row['operand']}, {row['regime']}",
            row["by"],
            duration(row["median"]),
            number(row["tokens_per_second"]) if is_model else "",
            number(row["gbps"]),
            percent(row["share_of_read"]),
            number(row["tflops"]) if computes else "",
            percent(row["share_of_compute"]) if computes else "",
        )


def _roofline(document: Document) -> Iterator[str]:
    yield f"{_machine(document)}; {document['model']}."
    yield ""
    yield from _table("kernel", "operand", "tokens", "time", "FLOP/byte", "TFLOP/s", "of the roof")
    for curve in document["curves"]:
        for point in curve["points"]:
            yield _row(
                curve["name"],
                point["operand"],
                str(point["tokens"]),
                duration(point["median"]),
                number(point["intensity"]),
                number(point["tflops"]),
                percent(point["share_of_roof"]),
            )


def _servers(document: Document) -> Iterator[str]:
    yield f"{_machine(document)};"
    yield f"{document['model']}. Latencies are percentiles 50, 95, 99."
    yield ""
    yield from _table(
        "server", "requests/s", "answers", "tokens/s", "first token, ms", "between tokens, ms"
    )
    for each in document["servers"]:
        latencies = (each["first_token"], each["between_tokens"])
        yield _row(
            each["name"],
            f"{each['rate']:g}",
            str(each["answered"]),
            number(each["tokens_per_second"]),
            *(
                " / ".join(f"{1e3 * s:,.0f}" for s in values) if values else "-"
                for values in latencies
            ),
        )


def _engine(document: Document) -> Iterator[str]:
    yield f"{document['machine']}."
    yield "Medians over the rounds."
    yield ""
    yield from _table("by", "requests", "rounds", "tokens/s")
    targets = {"engine": document} if "batches" in document else document
    for name, found in targets.items():
        batches = found["batches"] if isinstance(found, dict) else []
        for requests in sorted({batch["requests"] for batch in batches}):
            rates = [b["tokens_per_second"] for b in batches if b["requests"] == requests]
            rate = number(statistics.median(rates))
            yield _row(name, str(requests), str(len(rates)), rate)


if __name__ == "__main__":
    argparse.ArgumentParser(description=f"Write {PAGE}, the tables of all runs.").parse_args()
    PAGE.write_text(render())
