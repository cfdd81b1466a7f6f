"""A report for machines: one JSON document, raw samples included."""

import json
from dataclasses import asdict

from tinyllm_bench.ceilings import Ceilings
from tinyllm_bench.report import FORMAT, Report
from tinyllm_bench.result import Result


def json_report(report: Report) -> str:
    """Write a report as JSON: times in seconds, sizes in bytes, the rest as the names say."""
    settings = asdict(report.settings)
    settings["plot"] = None if report.settings.plot is None else str(report.settings.plot)
    document = {
        "format": FORMAT,
        "version": report.version,
        "machine": asdict(report.machine),
        "ceilings": None if report.ceilings is None else asdict(report.ceilings),
        "settings": settings,
        "model": {"name": report.name, "weights": report.form, "bytes": report.model_bytes},
        "results": [result_row(report.ceilings, result) for result in report.results],
        "notices": report.notices,
        "interrupted": report.interrupted,
    }
    return json.dumps(document, indent=2)


def result_row(ceilings: Ceilings | None, result: Result) -> dict[str, object]:
    """One result, with what follows from its samples and, where they are known, from ceilings."""
    samples, cost = result.samples, result.cost
    median = samples.median
    row: dict[str, object] = {
        "what": result.what,
        "operand": result.operand,
        "regime": result.regime,
        "by": result.by,
        "tokens": result.tokens,
        "samples": list(samples.seconds),
        "calls_per_sample": samples.calls,
        "cold": samples.cold,
        "median": median,
        "quartiles": list(samples.quartiles),
        "tokens_per_second": result.tokens_per_second,
        "relative_to_reference": result.relative,
        "bytes": cost.bytes,
        "flops": cost.flops,
        "gbps": cost.gbps(median),
        "tflops": cost.tflops(median),
    }
    if ceilings is not None:
        row["share_of_read"] = ceilings.share_of_read(cost, median)
        row["share_of_compute"] = ceilings.share_of_compute(cost, median)
        row["share_of_limit"] = ceilings.limit(cost) / median
    return row
