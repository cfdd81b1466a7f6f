"""Predictions, for people and for machines."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.table import Table

from tinyllm_bench.parallel.blueprint import Blueprint
from tinyllm_bench.parallel.link import Link
from tinyllm_bench.parallel.prediction import Assumptions, Prediction, break_even, fastest
from tinyllm_bench.tables import duration, number, report_console

FORMAT = "tinyllm-predict/1"

Predictions = Mapping[Link, Sequence[Prediction]]


def heading(blueprint: Blueprint, given: Assumptions) -> list[str]:
    """The model, and what was assumed of each rank."""
    formats = {f"{each.bits}-bit {each.mode}" for each in blueprint.formats.values()}
    dtype = str(blueprint.dtype).removeprefix("mlx.core.")
    stored = ", ".join([*sorted(formats), dtype])
    fixed = f", and {duration(given.fixed)} of a token are not divided" if given.fixed else ""
    rate = f"a rank reads {number(given.read_rate / 1e9)} GB/s{fixed}"
    return [f"{blueprint.name}, {stored}, after {given.keys} tokens", rate]


def print_predictions(blueprint: Blueprint, given: Assumptions, found: Predictions) -> None:
    """Write two tables to stdout: what a token takes, and how fast it is over each link."""
    console = report_console()
    for line in heading(blueprint, given):
        console.print(line)
    links = list(found)
    for kind, mesh in (("ring", False), ("mesh", True)):
        chosen = [link for link in links if link.mesh == mesh]
        if chosen:
            console.print()
            console.print(_token_table(kind, found[chosen[0]]))
    console.print()
    console.print(_speed_table(found))


def json_report(blueprint: Blueprint, given: Assumptions, found: Predictions) -> str:
    """One document: times in seconds, sizes in bytes."""
    document = {
        "format": FORMAT,
        "model": blueprint.name,
        "dtype": str(blueprint.dtype).removeprefix("mlx.core."),
        "assumptions": asdict(given),
        "links": [
            asdict(link)
            | {
                "fastest_ranks": fastest(predictions).ranks,
                "predictions": [_row(each) for each in predictions],
            }
            for link, predictions in found.items()
        ],
    }
    return json.dumps(document, indent=2)


def _row(prediction: Prediction) -> dict[str, object]:
    traffic = prediction.traffic
    return {
        "ranks": prediction.ranks,
        "read_bytes": prediction.read_bytes,
        "payload_bytes": traffic.payload,
        "wire_bytes": traffic.wire_bytes,
        "messages": len(traffic.messages),
        "hops": traffic.hops,
        "path_bytes": traffic.path_bytes,
        "computing": prediction.computing,
        "waiting": prediction.waiting,
        "tokens_per_second": prediction.tokens_per_second,
        "speedup": prediction.speedup,
    }


def _token_table(kind: str, predictions: Sequence[Prediction]) -> Table:
    """What does not depend on the link."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"a token, {kind}")
    for name in ("read, MB", "computing", "messages", "hops", "payload, KB", "on the wire, KB"):
        table.add_column(name, justify="right")
    for each in predictions:
        table.add_row(
            _ranks(each),
            number(each.read_bytes / 1e6),
            duration(each.computing),
            str(len(each.traffic.messages)),
            str(each.traffic.hops),
            number(each.traffic.payload / 1e3),
            number(each.traffic.wire_bytes / 1e3),
        )
    return table


def _speed_table(found: Predictions) -> Table:
    """Tokens a second, and times one rank."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tokens/s")
    for link in found:
        table.add_column(link.name, justify="right")
    for row in zip(*found.values(), strict=True):  # the same numbers of ranks over each link
        speeds = [f"{number(each.tokens_per_second)} ({each.speedup:.2f})" for each in row]
        table.add_row(_ranks(row[0]), *speeds)
    table.add_section()
    best = [fastest(chosen) for chosen in found.values()]
    table.add_row("fastest with", *map(_ranks, best))
    table.add_row("a hop takes", *(duration(link.latency) for link in found))
    table.add_row("two pay below", *(_limit(link, chosen) for link, chosen in found.items()))
    return table


def _limit(link: Link, predictions: Sequence[Prediction]) -> str:
    """The latency at which two ranks are as fast as one."""
    if not {1, 2} <= {each.ranks for each in predictions}:
        return ""
    seconds = break_even(predictions, link)
    return duration(seconds) if seconds > 0 else "never"


def _ranks(prediction: Prediction) -> str:
    return f"{prediction.ranks} rank{'s' if prediction.ranks > 1 else ''}"
