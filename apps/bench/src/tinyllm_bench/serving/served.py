"""A server that is measured, as a process of its own."""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tinyllm_bench.errors import BenchError

_PATIENCE = 180.0  # seconds until the model is loaded


@dataclass(frozen=True)
class RunningServer:
    """A server that answers.

    Attributes:
        url: where.
        process: its number.
    """

    url: str
    process: int


@dataclass(frozen=True)
class Served:
    """A server that can be started.

    Attributes:
        name: for the report.
        command: without the port.
        ready: the path that answers 200 once the model is loaded.
        extra: fields of a request that it takes beside the usual ones.
    """

    name: str
    command: Sequence[str]
    ready: str
    extra: dict[str, object] = field(default_factory=dict)

    @contextmanager
    def running(self, log: Path) -> Iterator[RunningServer]:
        """Start it on a free port, and end it.

        Raises:
            BenchError: if it does not come up; its log says why.
        """
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        with log.open("w") as written:
            process = subprocess.Popen(
                [*self.command, "--port", str(port)], stdout=written, stderr=written
            )
        try:
            deadline = time.monotonic() + _PATIENCE
            while not _answers(url + self.ready):
                if process.poll() is not None or time.monotonic() > deadline:
                    last = (log.read_text().strip().splitlines() or ["it said nothing"])[-1]
                    raise BenchError(f"{self.name} did not start: {last}")
                time.sleep(0.1)
            yield RunningServer(url, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    """A port that was free a moment ago; the others than ours cannot say which one they got."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
