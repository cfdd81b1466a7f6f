"""Server processes: tinyllm's and those of the peers."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from tinyllm_cli.cores import usable_cores

from tinyllm_bench.errors import BenchError
from tinyllm_bench.peers.registry import check_installed
from tinyllm_bench.serving.model_files import ModelFiles

_LOADING_TIMEOUT = 180.0  # seconds
_PARALLEL = 8  # requests that llama.cpp computes at a time
_TOKEN_MARGIN = 64  # extra tokens, since a prompt may have more tokens than words


@dataclass(frozen=True)
class RunningServer:
    """A server that is ready, with its address and its process id."""

    url: str
    pid: int


@dataclass(frozen=True)
class Server:
    """A server that can be started."""

    name: str  # name in the report
    command: Sequence[str]  # command line without the port
    ready: str  # path that answers 200 once the model is loaded
    extra: dict[str, object] = field(default_factory=dict)  # fields to add to each request

    @contextmanager
    def running(self, log: Path) -> Iterator[RunningServer]:
        """Start the server on a free port, and stop it at the end.

        Raise `BenchError` with the last line of the log if the server does not start.
        """
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        with log.open("w") as output:
            process = subprocess.Popen(
                [*self.command, "--port", str(port)], stdout=output, stderr=output
            )
        try:
            deadline = time.monotonic() + _LOADING_TIMEOUT
            while not _answers(url + self.ready):
                what = None if process.poll() is None else "did not start"
                if what is None and time.monotonic() > deadline:
                    what = f"is not ready after {_LOADING_TIMEOUT:.0f} s (try a smaller model)"
                if what is not None:
                    last = (log.read_text().strip().splitlines() or ["its log is empty"])[-1]
                    raise BenchError(f"{self.name} {what}: {last}")
                time.sleep(0.1)
            yield RunningServer(url, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def tinyllm(files: ModelFiles, *options: str) -> Server:
    """Return tinyllm's server, with further options of its command line."""
    model = ["--model", str(files.folder), "--served-model-name", "model"]
    command = [sys.executable, "-m", "tinyllm_serve", *model, *options]
    return Server("tinyllm", command, "/ready", {"ignore_eos": True})


def find_servers(
    files: ModelFiles, peers: Sequence[str], most_tokens: int
) -> tuple[list[Server], list[str]]:
    """Return tinyllm's server and the installed peers, and the reasons of missing peers.

    llama.cpp reserves memory for `most_tokens` tokens of a prompt and its answer.
    """
    found, notices = [tinyllm(files)], []
    for name in peers:
        try:
            is_mlx = name == "mlx-lm"
            found.append(_mlx_lm(files) if is_mlx else _llama_cpp(files, most_tokens))
        except BenchError as error:
            notices.append(f"{name}: {error}")
    return found, notices


def _mlx_lm(files: ModelFiles) -> Server:
    check_installed("mlx_lm", "it is not installed (pip install mlx-lm)")
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(files.folder)]
    # With any other name, the server would download a model. It has no field to ignore end tokens.
    return Server("mlx_lm.server", command, "/health", {"model": "default_model"})


def _llama_cpp(files: ModelFiles, most_tokens: int) -> Server:
    """Return llama-server, or llama-cpp-python's server.

    The latter runs one request at a time, and has no field to ignore end tokens.
    """
    if files.gguf is None:
        raise BenchError(files.without_gguf)
    context = most_tokens + _TOKEN_MARGIN
    model, threads = ["--model", str(files.gguf)], str(usable_cores())
    llama = shutil.which("llama-server")
    if llama is not None:
        command = [llama, *model, "--threads", threads, "--parallel", str(_PARALLEL)]
        command += ["--ctx-size", str(_PARALLEL * context)]  # all slots share it
        return Server("llama.cpp", command, "/health", {"ignore_eos": True})
    check_installed("llama_cpp", "neither llama-server nor llama-cpp-python is installed")
    command = [sys.executable, "-m", "llama_cpp.server", *model, "--n_threads", threads]
    # By default, a new request interrupts the running one.
    command += ["--n_ctx", str(context), "--interrupt_requests", "false"]
    return Server("llama_cpp.server", command, "/v1/models")


def _free_port() -> int:
    """Return a port that was free a moment ago. Some servers cannot report a port they chose."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _answers(url: str) -> bool:
    try:  # without the proxy of the environment: the server is on this machine
        return httpx.get(url, timeout=5, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
