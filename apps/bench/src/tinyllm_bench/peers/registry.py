"""Registry of peers: mlx-lm, llama.cpp and OpenVINO, if they are installed."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tinyllm_bench.cases.whole_model import LocalRunner
from tinyllm_bench.cost import ModelCosts
from tinyllm_bench.errors import BenchError
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.models.weight_format import dtype_name
from tinyllm_bench.peers import llama_cpp, openvino
from tinyllm_bench.peers.child import ChildRunner
from tinyllm_bench.peers.gguf import gguf_type, write_gguf
from tinyllm_bench.peers.mlx_lm import make_runner
from tinyllm_bench.peers.openvino_graph import OpenVinoFormat, tensor_bytes
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
    """Start mlx-lm with the same weights, or another peer with random weights of the same shape."""
    make: Callable[[], LocalRunner]
    context, decoded = settings.context_tokens, settings.decode_tokens
    if name == "mlx-lm":
        check_installed("mlx_lm", "mlx-lm is not installed (pip install mlx-lm)")
        if model.config.recurrent is not None:
            raise BenchError("mlx-lm: a model with recurrent layers is not supported")
        sizes, number_bytes = model.stored_bytes, model.format.dtype.size
        # The child draws the same random weights, from the same seed. It gets the dtype by name,
        # because "auto" depends on the programs measured.
        same = replace(settings, dtype=dtype_name(model.format.dtype), peers=False, peer=[])
        make = partial(make_runner, same, prompt)
    elif name == "llama.cpp":
        install = "llama-cpp-python is not installed (uv run --group peers bench --peers)"
        check_installed("llama_cpp", install)
        kind, path = gguf_type(model.format.bits), folder / "model.gguf"
        name = f"llama.cpp {kind}"
        sizes, number_bytes = write_gguf(path, model.config, kind), llama_cpp.KV_NUMBER_BYTES
        make = partial(
            llama_cpp.LlamaCppRunner,
            path,
            prompt,
            context,
            decoded,
            recurrent=model.config.recurrent is not None,
        )
    else:
        check_installed(
            "openvino", "openvino is not installed (uv run --with openvino bench --peers)"
        )
        weights = OpenVinoFormat(model.format.bits, model.format.group_size)
        name = f"openvino {weights}"
        sizes, number_bytes = tensor_bytes(model.config, weights), openvino.KV_NUMBER_BYTES
        make = partial(openvino.OpenVinoRunner, model.config, weights, prompt, context)
    return ChildRunner(name, ModelCosts(model.config, sizes, number_bytes), make)


def check_installed(package: str, message: str) -> None:
    """Check that a package is installed. Raise `BenchError` if it is not."""
    if importlib.util.find_spec(package) is None:
        raise BenchError(message)
