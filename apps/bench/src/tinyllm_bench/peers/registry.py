"""Registry of peers: mlx-lm and llama.cpp, if they are installed."""

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tinyllm_bench.cases.whole_model import LocalRunner
from tinyllm_bench.cost import ModelCosts, weight_bytes
from tinyllm_bench.errors import BenchError
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.peers.child import ChildRunner
from tinyllm_bench.peers.gguf import gguf_type, write_gguf
from tinyllm_bench.peers.llama_cpp import KV_NUMBER_BYTES, LlamaCppRunner
from tinyllm_bench.peers.mlx_lm import make_runner
from tinyllm_bench.settings import Settings


def find_peers(
    model: BenchModel, settings: Settings, prompt: Sequence[int], folder: Path
) -> tuple[list[ChildRunner], list[str]]:
    """Start each requested peer in a child process, with the same prompt of token ids.

    The folder keeps files of the peers until the run ends. Return the peers, and a message for each
    missing peer.
    """
    runners, notices = [], []
    for name in settings.chosen_peers:
        try:
            runners.append(_start(name, model, settings, prompt, folder))
        except BenchError as error:
            notices.append(f"--peers: {error}")
    return runners, notices


def _start(
    name: str, model: BenchModel, settings: Settings, prompt: Sequence[int], folder: Path
) -> ChildRunner:
    """Start mlx-lm with the same weights, or llama.cpp with random weights of the same shape."""
    make: Callable[[], LocalRunner]
    if name == "mlx-lm":
        check_installed("mlx_lm", "mlx-lm is not installed (pip install mlx-lm)")
        sizes, number_bytes = weight_bytes(model.weights), model.format.dtype.size
        make = partial(make_runner, settings, prompt)  # draws random weights from the same seed
    else:
        install = "llama-cpp-python is not installed (uv run --group peers bench --peers)"
        check_installed("llama_cpp", install)
        kind, path = gguf_type(model.format.bits), folder / "model.gguf"
        name = f"llama.cpp {kind}"
        sizes, number_bytes = write_gguf(path, model.config, kind), KV_NUMBER_BYTES
        context, decoded = settings.context_tokens, settings.decode_tokens
        make = partial(LlamaCppRunner, path, prompt, context, decoded)
    return ChildRunner(name, ModelCosts(model.config, sizes, number_bytes), make)


def check_installed(package: str, message: str) -> None:
    """Check that a package is installed. Raise `BenchError` if it is not."""
    if importlib.util.find_spec(package) is None:
        raise BenchError(message)
