"""A roofline, for people and for machines."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from tinyllm_bench.json_report import result_row
from tinyllm_bench.machine import Machine
from tinyllm_bench.roofline.curve import Curve
from tinyllm_bench.roofline.roofs import Roofs, intensity
from tinyllm_bench.tables import duration, number, percent, report_console

FORMAT = "tinyllm-roofline/1"


def heading(machine: Machine, name: str, roofs: Roofs) -> list[str]:
    """The machine, the model, and the limits."""
    peaks = [f"{number(peak)} TFLOP/s ({what})" for what, peak in roofs.peaks.items()]
    ceilings = roofs.ceilings
    return [
        f"{machine}; {name}",
        f"reads {number(ceilings.read_gbps)} GB/s ({ceilings.read_how})",
        f"computes {', '.join(peaks)}",
    ]


def print_roofline(title: Sequence[str], roofs: Roofs, curves: Sequence[Curve]) -> None:
    """Write a table to stdout."""
    console = report_console()
    for line in title:
        console.print(line)
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("kernel", overflow="fold")
    for name in ("tokens", "time", "GB/s", "FLOP/byte", "TFLOP/s", "of the roof"):
        table.add_column(name, justify="right", no_wrap=True)
    for curve in curves:
        table.add_section()
        for i, row in enumerate(curve.results):
            cost, median = row.cost, row.samples.median
            table.add_row(
                f"{curve.name}, {row.operand}" if i == 0 else "",
                str(row.tokens),
                duration(median),
                number(cost.gbps(median)),
                number(intensity(cost)),
                number(cost.tflops(median)),
                percent(roofs.share(cost, median)),
            )
    console.print(table)


def json_report(machine: Machine, name: str, roofs: Roofs, curves: Sequence[Curve]) -> str:
    """One document: times in seconds, sizes in bytes, raw samples included."""
    document = {
        "format": FORMAT,
        "machine": asdict(machine),
        "model": name,
        "ceilings": asdict(roofs.ceilings),
        "peaks": dict(roofs.peaks),
        "curves": [
            {
                "name": curve.name,
                "points": [
                    result_row(roofs.ceilings, row)
                    | {
                        "intensity": intensity(row.cost),
                        "share_of_roof": roofs.share(row.cost, row.samples.median),
                    }
                    for row in curve.results
                ],
            }
            for curve in curves
        ],
    }
    return json.dumps(document, indent=2)
