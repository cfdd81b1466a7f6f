"""The same loads, for each server in turn."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tinyllm_bench.errors import BenchError
from tinyllm_bench.progress import ProgressLine
from tinyllm_bench.serving.client import send
from tinyllm_bench.serving.figures import Figures
from tinyllm_bench.serving.load import Load
from tinyllm_bench.serving.reply import Reply
from tinyllm_bench.serving.served import Served


def measure(loads: Sequence[Load], servers: Sequence[Served]) -> tuple[list[Figures], list[str]]:
    """Start each server, send it the loads, and end it before the next one starts.

    Returns:
        What there is to report, a server's figures in the order of the loads; and what went wrong:
        why a server did not come up, and how many requests failed.
    """
    figures: list[Figures] = []
    notices: list[str] = []
    with tempfile.TemporaryDirectory() as folder, ProgressLine() as progress:
        progress.expect(len(servers) * len(loads))
        for place, server in enumerate(servers):
            progress.begin(server.name)
            try:
                with server.running(Path(folder) / f"{place}.log") as running:
                    warm = Load(requests=2, rate=0.0, prompt_words=8, answer_tokens=4, seed=1)
                    asyncio.run(send(warm, running.url, server.extra))
                    for load in loads:
                        progress.begin(f"{server.name}, {load.rate:g} a second")
                        replies = asyncio.run(send(load, running.url, server.extra))
                        figures.append(Figures.of(server.name, load.rate, replies))
                        notices += _failures(server.name, replies)
                        progress.end()
            except BenchError as error:
                notices.append(str(error))
    return figures, notices


def _failures(name: str, replies: Sequence[Reply]) -> list[str]:
    """A line if any request has failed, with the reasons, the most frequent first."""
    reasons = Counter(reply.error for reply in replies if reply.error is not None)
    if not reasons:
        return []
    listed = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
    return [f"{name}: {reasons.total()} of {len(replies)} requests failed: {listed}"]
