"""Results of servers under load: statistics, table and JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tinyllm_bench.machine import Machine
from tinyllm_bench.report.tables import new_table, report_console
from tinyllm_bench.rounds import percentile
from tinyllm_bench.serving.client import Reply
from tinyllm_bench.serving.options import Load

Percentiles = tuple[float, float, float]
"""Percentiles 50, 95 and 99."""


@dataclass(frozen=True)
class ServerResult:
    """Statistics of a server under a load. Times are in seconds."""

    name: str  # name of the server
    rate: float  # mean requests per second; 0 if all were sent at once
    answered: int  # requests with an answer
    failed: int  # requests without an answer
    seconds: float  # time from the first request to the last piece
    tokens_per_second: float  # tokens of all answers per second
    prompt_tokens: int  # tokens of all prompts
    cached_tokens: int  # tokens of prompts that the server had cached
    first_token: Percentiles  # time to first token
    between_tokens: Percentiles  # time between two pieces of an answer

    @classmethod
    def of(cls, name: str, rate: float, replies: Sequence[Reply]) -> "ServerResult":
        """Compute the statistics of all replies."""
        good = [reply for reply in replies if reply.error is None]
        start = min((reply.sent for reply in replies), default=0.0)
        seconds = max((reply.pieces[-1] for reply in good), default=start) - start
        tokens = sum(reply.tokens for reply in good)
        return cls(
            name=name,
            rate=rate,
            answered=len(good),
            failed=len(replies) - len(good),
            seconds=seconds,
            tokens_per_second=tokens / seconds if seconds else 0.0,
            prompt_tokens=sum(reply.prompt_tokens for reply in good),
            cached_tokens=sum(reply.cached_tokens for reply in good),
            first_token=_percentiles([reply.first for reply in good]),
            between_tokens=_percentiles([gap for reply in good for gap in reply.gaps]),
        )


def print_results(machine: Machine, model: str, results: Sequence[ServerResult]) -> None:
    """Write a table to stdout."""
    percentiles = "p50/p95/p99 ms"
    columns = ("a second", "answers", "tokens/s", "cached", f"first token {percentiles}")
    table = new_table(("server",), (*columns, f"between tokens {percentiles}"))
    for each in results:
        table.add_row(
            each.name,
            f"{each.rate:g}" if each.rate else "at once",
            f"{each.answered}" + (f" ({each.failed} failed)" if each.failed else ""),
            f"{each.tokens_per_second:,.1f}",
            f"{each.cached_tokens / max(each.prompt_tokens, 1):.0%}",
            _milliseconds(each.first_token),
            _milliseconds(each.between_tokens),
        )
    console = report_console()
    console.print(f"{machine}; {model}\n")
    console.print(table)


def json_results(
    machine: Machine,
    model: str,
    loads: Sequence[Load],
    results: Sequence[ServerResult],
    notices: Sequence[str],
) -> str:
    """Return a JSON document. Times are in seconds."""
    document = {
        "machine": asdict(machine),
        "model": model,
        "loads": [asdict(load) for load in loads],
        "servers": [asdict(each) for each in results],
        "notices": list(notices),
    }
    return json.dumps(document, indent=2)


def _percentiles(values: Sequence[float]) -> Percentiles:
    return percentile(values, 50), percentile(values, 95), percentile(values, 99)


def _milliseconds(percentiles: Percentiles) -> str:
    return " / ".join(f"{seconds * 1e3:,.0f}" for seconds in percentiles)
