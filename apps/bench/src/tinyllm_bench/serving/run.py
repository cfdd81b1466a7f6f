"""One load, each server in turn."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tinyllm_bench.errors import BenchError
from tinyllm_bench.progress import ProgressLine
from tinyllm_bench.serving.client import send
from tinyllm_bench.serving.figures import Figures
from tinyllm_bench.serving.load import Load
from tinyllm_bench.serving.served import Served


def measure(load: Load, servers: Sequence[Served]) -> tuple[list[Figures], list[str]]:
    """Start each server, send it the load, and end it before the next one starts.

    Returns:
        What there is to report, and for each server that did not come up why.
    """
    figures: list[Figures] = []
    notices: list[str] = []
    with tempfile.TemporaryDirectory() as folder, ProgressLine() as progress:
        progress.expect(len(servers))
        for place, server in enumerate(servers):
            progress.begin(server.name)
            try:
                with server.running(Path(folder) / f"{place}.log") as url:
                    warm = Load(requests=2, rate=0.0, prompt_words=8, answer_tokens=4, seed=1)
                    asyncio.run(send(warm, url, server.extra))
                    replies = asyncio.run(send(load, url, server.extra))
            except BenchError as error:
                notices.append(str(error))
            else:
                figures.append(Figures.of(server.name, replies))
                failures = {reply.error for reply in replies if reply.error is not None}
                notices += [f"{server.name}: {failure}" for failure in sorted(failures)]
            progress.end()
    return figures, notices
