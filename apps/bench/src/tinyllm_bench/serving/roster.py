"""Which servers are there: ours, and its peers."""

import importlib.util
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence

from tinyllm_bench.errors import BenchError
from tinyllm_bench.machine import usable_cores
from tinyllm_bench.serving.served import Served
from tinyllm_bench.serving.subject_files import SubjectFiles

_PARALLEL = 8  # answers that llama.cpp computes at a time
_MARGIN = 64  # tokens that a prompt may have more than words


def tinyllm(files: SubjectFiles, *options: str) -> Served:
    """Ours, with further options of its command line."""
    model = ("--model", str(files.folder), "--served-model-name", "model")
    command = ["-m", "tinyllm_serve", *model, *options]
    return Served("tinyllm", [sys.executable, *command], "/ready", {"ignore_eos": True})


def find_servers(
    files: SubjectFiles, peers: Sequence[str], most_tokens: int
) -> tuple[list[Served], list[str]]:
    """Ours, and the peers that are here; and why the others are not.

    Args:
        files: the model.
        peers: the names of those to look for: "mlx-lm", "llama.cpp".
        most_tokens: of a prompt and its answer; llama.cpp takes memory for no more.
    """
    makers: Mapping[str, Callable[[], Served]] = {
        "mlx-lm": lambda: _mlx_lm(files),
        "llama.cpp": lambda: _llama_cpp(files, most_tokens + _MARGIN),
    }
    found, notices = [tinyllm(files)], []
    for name in peers:
        try:
            found.append(makers[name]())
        except BenchError as error:
            notices.append(f"{name}: {error}")
    return found, notices


def _mlx_lm(files: SubjectFiles) -> Served:
    if importlib.util.find_spec("mlx_lm") is None:
        raise BenchError("it is not installed (pip install mlx-lm)")
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(files.folder)]
    # It takes whatever name a request has for a model to be fetched, but this one.
    return Served("mlx_lm.server", command, "/health", {"model": "default_model"})


def _llama_cpp(files: SubjectFiles, context: int) -> Served:
    """llama.cpp's own server, or that of llama-cpp-python, which answers one after the other."""
    if files.gguf is None:
        raise BenchError(files.without_gguf)
    model, threads = ["--model", str(files.gguf)], str(usable_cores())
    llama = shutil.which("llama-server")
    if llama is not None:
        command = [llama, *model, "--threads", threads, "--parallel", str(_PARALLEL)]
        command += ["--ctx-size", str(_PARALLEL * context)]  # its slots share it
        return Served("llama.cpp", command, "/health", {"ignore_eos": True})
    if importlib.util.find_spec("llama_cpp") is None:
        raise BenchError("neither llama-server nor llama-cpp-python is installed")
    command = [sys.executable, "-m", "llama_cpp.server", *model, "--n_threads", threads]
    # Unless told, a request that comes ends the one that is being answered.
    command += ["--n_ctx", str(context), "--interrupt_requests", "false"]
    return Served("llama_cpp.server", command, "/v1/models")
