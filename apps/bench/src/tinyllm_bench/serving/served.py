"""The servers that are measured, each as a process of its own."""

import importlib.util
import shutil
import socket
import subprocess
import sys
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
    def running(self, log: Path) -> Iterator[str]:
        """Start it on a free port, give its address, and end it.

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
            yield url
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def servers(model: Path, gguf: Path | None, *, peers: bool) -> tuple[list[Served], list[str]]:
    """Those that are here, and why the others are not.

    Args:
        model: the folder of a checkpoint.
        gguf: the same model for llama.cpp.
        peers: whether to look for others than ours.
    """
    ours = ["-m", "tinyllm_serve", "--model", str(model), "--name", "model"]
    found = [Served("tinyllm", [sys.executable, *ours], "/ready", {"ignore_eos": True})]
    notices: list[str] = []
    if not peers:
        return found, notices
    if importlib.util.find_spec("mlx_lm") is None:
        notices.append("mlx_lm.server: mlx-lm is not installed")
    else:
        theirs = [sys.executable, "-m", "mlx_lm", "server", "--model", str(model)]
        # It takes whatever name a request has for a model to be fetched, but this one.
        found.append(Served("mlx_lm.server", theirs, "/health", {"model": "default_model"}))
    llama = shutil.which("llama-server")
    if llama is None:
        notices.append("llama.cpp: there is no llama-server on the PATH")
    elif gguf is None:
        notices.append("llama.cpp: it needs the model as --gguf FILE")
    else:
        command = [llama, "--model", str(gguf), "--parallel", "8"]
        found.append(Served("llama.cpp", command, "/health", {"ignore_eos": True}))
    return found, notices


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
