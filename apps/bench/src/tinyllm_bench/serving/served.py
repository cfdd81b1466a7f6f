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
from tinyllm_bench.machine import usable_cores
from tinyllm_bench.serving.subject_files import SubjectFiles

_PATIENCE = 180.0  # seconds until the model is loaded
_PARALLEL = 8  # answers that llama.cpp computes at a time
_MARGIN = 64  # tokens that a prompt may have more than words


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


def tinyllm(files: SubjectFiles, *options: str) -> Served:
    """Ours, with further options of its command line."""
    command = ["-m", "tinyllm_serve", "--model", str(files.folder), "--name", "model", *options]
    return Served("tinyllm", [sys.executable, *command], "/ready", {"ignore_eos": True})


def servers(
    files: SubjectFiles, *, peers: bool, most_tokens: int
) -> tuple[list[Served], list[str]]:
    """Those that are here, and why the others are not.

    Args:
        files: the model.
        peers: whether to look for others than ours.
        most_tokens: of a prompt and its answer; llama.cpp takes memory for no more.
    """
    found = [tinyllm(files)]
    notices: list[str] = []
    if not peers:
        return found, notices
    if importlib.util.find_spec("mlx_lm") is None:
        notices.append("mlx_lm.server: mlx-lm is not installed")
    else:
        theirs = [sys.executable, "-m", "mlx_lm", "server", "--model", str(files.folder)]
        # It takes whatever name a request has for a model to be fetched, but this one.
        found.append(Served("mlx_lm.server", theirs, "/health", {"model": "default_model"}))
    if files.gguf is None:
        notices.append(f"llama.cpp: {files.without_gguf}")
        return found, notices
    llama = shutil.which("llama-server")
    if llama is not None:
        context = _PARALLEL * (most_tokens + _MARGIN)  # its slots share it
        command = [llama, "--model", str(files.gguf), "--parallel", str(_PARALLEL)]
        command += ["--ctx-size", str(context), "--threads", str(usable_cores())]
        found.append(Served("llama.cpp", command, "/health", {"ignore_eos": True}))
    elif importlib.util.find_spec("llama_cpp") is not None:
        command = [sys.executable, "-m", "llama_cpp.server", "--model", str(files.gguf)]
        command += ["--n_ctx", str(most_tokens + _MARGIN), "--n_threads", str(usable_cores())]
        # Unless told, a request that comes ends the one that is being answered.
        command += ["--interrupt_requests", "false"]
        found.append(Served("llama_cpp.server", command, "/v1/models"))
    else:
        notices.append("llama.cpp: neither llama-server nor llama-cpp-python is installed")
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
