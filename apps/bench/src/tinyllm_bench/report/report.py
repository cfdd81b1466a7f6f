"""Report of a run, and its JSON document."""

from dataclasses import asdict, dataclass, field

from tinyllm_bench.ceilings import Ceilings
from tinyllm_bench.machine import Machine
from tinyllm_bench.report.json_text import json_text
from tinyllm_bench.rounds import Failure, Result
from tinyllm_bench.settings import Settings

FORMAT = "tinyllm-bench/1"


@dataclass(frozen=True)
class ModelInfo:
    """Model of a run."""

    name: str
    weights: str  # storage format of the weights
    bytes: int  # bytes of all weights


@dataclass
class Report:
    """Results of a run, added while the run goes on, so that Ctrl-C keeps the results so far."""

    settings: Settings
    machine: Machine
    version: str  # version of this program
    model: ModelInfo
    # The better of the ceilings before and after the run; None until they are measured.
    ceilings: Ceilings | None = None
    results: list[Result] = field(default_factory=list)  # measurements, in their order
    failures: list[Failure] = field(default_factory=list)  # measurements that failed
    notices: list[str] = field(default_factory=list)  # messages, such as missing peers
    interrupted: bool = False  # True if Ctrl-C ended the run


def json_report(report: Report) -> str:
    """Return a JSON document with the raw samples. Times are in seconds, sizes in bytes."""
    document = {
        "format": FORMAT,
        **asdict(report),
        "results": [result_row(report.ceilings, result) for result in report.results],
        "failures": [
            asdict(each.case) | {"by": each.by, "reason": each.reason} for each in report.failures
        ],
    }
    return json_text(document)


def result_row(ceilings: Ceilings | None, result: Result) -> dict[str, object]:
    """Return a result with derived values, and with shares of the ceilings if they are known."""
    samples, cost = result.samples, result.cost
    median = samples.median
    row = asdict(result.case) | {
        "by": result.by,
        "samples": list(samples.seconds),
        "calls_per_sample": samples.calls,
        "cold": samples.cold,
        "host_samples": list(samples.host),
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
