"""Servers under load, one after the other: `bench serve`."""

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tinyllm_bench.command_line import notice
from tinyllm_bench.errors import BenchError
from tinyllm_bench.machine import Machine
from tinyllm_bench.report.progress import progress_line
from tinyllm_bench.serving import server as servers
from tinyllm_bench.serving.client import Reply, send
from tinyllm_bench.serving.model_files import ModelFiles
from tinyllm_bench.serving.options import Load, ServeOptions
from tinyllm_bench.serving.results import ServerResult, json_results, print_results
from tinyllm_bench.serving.server import Server


def run_serve(options: ServeOptions) -> int:
    """Measure the servers one after the other. Return 1 if a server failed, otherwise 0."""
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
        results, failures = _measure(loads, found)
    machine = Machine.here()
    notices += failures
    for each in notices:
        notice(each)
    if options.as_json:
        sys.stdout.write(json_results(machine, files.name, loads, results, notices) + "\n")
    else:
        print_results(machine, files.name, results)
    complete = len(results) == len(found) * len(loads)
    return 0 if complete and all(each.answered for each in results) else 1


def _measure(
    loads: Sequence[Load], found: Sequence[Server]
) -> tuple[list[ServerResult], list[str]]:
    """Start each server, send it the loads, and stop it before the next one starts.

    Return the results, and messages about servers that did not start and requests that failed.
    """
    results: list[ServerResult] = []
    notices: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        progress_line(len(found) * len(loads)) as progress,
    ):
        for i, server in enumerate(found):
            progress(f"{server.name}, loading", len(results))
            try:
                with server.running(Path(folder) / f"{i}.log") as running:
                    warm_up = Load(requests=2, rate=0.0, prompt_words=8, answer_tokens=4, seed=1)
                    asyncio.run(send(warm_up, running.url, server.extra))
                    for load in loads:
                        progress(f"{server.name}, {load.rate:g} a second", len(results))
                        replies = asyncio.run(send(load, running.url, server.extra))
                        results.append(ServerResult.of(server.name, load.rate, replies))
                        notices += _failures(server.name, replies)
            except BenchError as error:
                notices.append(str(error))
    return results, notices


def _failures(name: str, replies: Sequence[Reply]) -> list[str]:
    """Return one line if requests failed, with the reasons, the most frequent first."""
    reasons = Counter(reply.error for reply in replies if reply.error is not None)
    if not reasons:
        return []
    listed = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
    return [f"{name}: {reasons.total()} of {len(replies)} requests failed: {listed}"]
