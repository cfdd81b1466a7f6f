"""Servers under load, one after the other: `bench serve`."""

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tinyllm_cli.messages import INTERRUPTED, notice

from tinyllm_bench.errors import BenchError
from tinyllm_bench.machine import Machine
from tinyllm_bench.report.json_text import json_text
from tinyllm_bench.report.tables import new_table, progress_line, report_console
from tinyllm_bench.rounds import percentile
from tinyllm_bench.serving import server as servers
from tinyllm_bench.serving.client import Reply, send
from tinyllm_bench.serving.model_files import ModelFiles
from tinyllm_bench.serving.options import Load, ServeOptions
from tinyllm_bench.serving.server import Server

Percentiles = tuple[float, float, float]  # percentiles 50, 95 and 99


@dataclass(frozen=True)
class ServerResult:
    """Statistics of a server under a load. Times are in seconds."""

    name: str  # name of the server
    rate: float  # mean requests per second; 0 if all came at once
    answered: int  # requests with an answer
    failed: int  # requests without one
    seconds: float  # time from the first request to the last piece
    tokens: int  # tokens of all answers
    tokens_per_second: float  # tokens of all answers per second
    prompt_tokens: int  # tokens of all prompts
    cached_tokens: int  # tokens of prompts that the server had cached
    first_token: Percentiles | None  # time to first token; None without answers
    # Time between two pieces of an answer; None if no answer has two pieces.
    between_tokens: Percentiles | None

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
            tokens=tokens,
            tokens_per_second=tokens / seconds if seconds else 0.0,
            prompt_tokens=sum(reply.prompt_tokens for reply in good),
            cached_tokens=sum(reply.cached_tokens for reply in good),
            first_token=_percentiles([reply.first for reply in good]),
            between_tokens=_percentiles([gap for reply in good for gap in reply.gaps]),
        )


def run_serve(options: ServeOptions) -> int:
    """Measure the servers one after the other, and show the results.

    Return 1 if a server failed, 130 after Ctrl-C, otherwise 0.
    """
    loads = options.loads()
    with tempfile.TemporaryDirectory() as folder:
        if options.shape is None:
            files = ModelFiles.of_model(options.model or "pico", options.gguf)
        else:
            files = ModelFiles.of_shape(
                options.shape, options.bits, Path(folder), gguf=options.peers
            )
        most_tokens = options.prompt_words + options.answer_tokens
        found, notices = servers.find_servers(files, options.chosen_peers, most_tokens)
        results, failures, interrupted = _measure(loads, found)
    machine = Machine.here()
    notices += failures
    for each in notices:
        notice(each, "bench")
    if options.as_json:
        document = {
            "machine": asdict(machine),
            "model": files.name,
            "loads": [asdict(load) for load in loads],
            "servers": [asdict(each) for each in results],  # times are in seconds
            "notices": notices,
        }
        sys.stdout.write(json_text(document) + "\n")
    else:
        _print_results(machine, files.name, results)
    if interrupted:
        return INTERRUPTED
    complete = len(results) == len(found) * len(loads)
    return 0 if complete and all(each.answered for each in results) else 1


def _measure(
    loads: Sequence[Load], found: Sequence[Server]
) -> tuple[list[ServerResult], list[str], bool]:
    """Start each server, send it the loads, and stop it before the next one starts.

    Return the results, messages about servers that did not start, requests that failed and short
    answers, and True if Ctrl-C ended the measurement.
    """
    results: list[ServerResult] = []
    notices: list[str] = []
    warm_up = Load(requests=2, rate=0.0, prompt_words=8, answer_tokens=4, seed=1)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            progress_line(len(found) * len(loads)) as progress,
        ):
            for i, server in enumerate(found):
                progress(f"{server.name}, loading", len(results))
                try:
                    with server.running(Path(folder) / f"{i}.log") as running:
                        asyncio.run(send(warm_up, running.url, server.extra))
                        for load in loads:
                            progress(f"{server.name}, {load.rate:g} a second", len(results))
                            replies = asyncio.run(send(load, running.url, server.extra))
                            result = ServerResult.of(server.name, load.rate, replies)
                            results.append(result)
                            notices += _failures(server.name, replies)
                            notices += _short_answers(result, load.answer_tokens)
                except BenchError as error:
                    notices.append(str(error))
    except KeyboardInterrupt:
        return results, [*notices, "interrupted: the remaining loads were not measured"], True
    return results, notices, False


def _failures(name: str, replies: Sequence[Reply]) -> list[str]:
    """Return one line if requests failed, with the reasons, the most frequent first."""
    reasons = Counter(reply.error for reply in replies if reply.error is not None)
    if not reasons:
        return []
    listed = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
    return [f"{name}: {reasons.total()} of {len(replies)} requests failed: {listed}"]


def _short_answers(result: ServerResult, answer_tokens: int) -> list[str]:
    """Return one line if the mean answer has fewer tokens than requested."""
    if result.tokens >= result.answered * answer_tokens:
        return []
    mean = result.tokens / result.answered
    return [
        f"{result.name}: expected {answer_tokens} tokens in each answer, got {mean:.1f} on "
        "average: do not compare its speed with that of longer answers"
    ]


def _print_results(machine: Machine, model: str, results: Sequence[ServerResult]) -> None:
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


def _percentiles(values: Sequence[float]) -> Percentiles | None:
    if not values:
        return None
    return percentile(values, 50), percentile(values, 95), percentile(values, 99)


def _milliseconds(percentiles: Percentiles | None) -> str:
    if percentiles is None:
        return "-"
    return " / ".join(f"{seconds * 1e3:,.0f}" for seconds in percentiles)
