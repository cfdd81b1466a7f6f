"""Registry of peers: mlx-lm and llama.cpp, if they are installed."""

import importlib.util
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tinyllm_bench.cases.whole_model import ModelCosts
from tinyllm_bench.cost import weight_bytes
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
            start = _start_mlx_lm if name == "mlx-lm" else _start_llama_cpp
            runners.append(start(model, settings, prompt, folder))
        except BenchError as error:
            notices.append(f"--peers: {error}")
    return runners, notices


def _start_mlx_lm(
    model: BenchModel, settings: Settings, prompt: Sequence[int], _folder: Path
) -> ChildRunner:
    """Start mlx-lm with the same weights: random weights are drawn again from the same seed."""
    check_installed("mlx_lm", "mlx-lm is not installed (pip install mlx-lm)")
    sizes, number_bytes = weight_bytes(model.weights), model.format.dtype.size
    context = settings.context_tokens
    costs = ModelCosts(model.config, sizes, number_bytes, len(prompt), context)
    return ChildRunner("mlx-lm", costs, partial(make_runner, settings, list(prompt)))


def _start_llama_cpp(
    model: BenchModel, settings: Settings, prompt: Sequence[int], folder: Path
) -> ChildRunner:
    """Start llama.cpp with random weights of the same shape."""
    check_installed(
        "llama_cpp", "llama-cpp-python is not installed (uv run --group peers bench --peers)"
    )
    kind, path = gguf_type(model.format.bits), folder / "model.gguf"
    sizes, context = write_gguf(path, model.config, kind), settings.context_tokens
    costs = ModelCosts(model.config, sizes, KV_NUMBER_BYTES, len(prompt), context)
    make = partial(LlamaCppRunner, path, list(prompt), context, settings.decode_tokens)
    return ChildRunner(f"llama.cpp {kind}", costs, make)


def check_installed(package: str, message: str) -> None:
    """Check that a package is installed. Raise `BenchError` if it is not."""
    if importlib.util.find_spec(package) is None:
        raise BenchError(message)
