"""llama.cpp, through `llama-cpp-python`, with random weights of the same shape."""

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast, runtime_checkable

import numpy as np

from tinyllm_bench.cost import Cost
from tinyllm_bench.errors import BenchError
from tinyllm_bench.machine import on_gpu, usable_cores
from tinyllm_bench.model_cost import decode_cost, prefill_cost
from tinyllm_bench.peers.gguf_file import TYPES, write_gguf
from tinyllm_bench.runner import Runner
from tinyllm_bench.subject import Subject

_KEY_BYTES = 2  # its cache is float16 unless told otherwise


@runtime_checkable
class _Llama(Protocol):
    """What is asked of `llama_cpp.Llama`."""

    n_tokens: int
    ctx: object

    def reset(self) -> None: ...

    def eval(self, tokens: Sequence[int]) -> None: ...

    def n_vocab(self) -> int: ...


class LlamaCppRunner(Runner):
    """A GGUF file, memory-mapped by llama.cpp, which computes on all cores (or on the GPU)."""

    def __init__(
        self,
        subject: Subject,
        prompt: Sequence[int],
        context: int,
        decode_tokens: int,
        folder: Path,
    ) -> None:
        """Write the file and load it.

        Args:
            subject: whose shape and bits the file has.
            prompt: token ids.
            context: tokens in the cache when decoding begins.
            decode_tokens: tokens of one call of `decode` at most.
            folder: where the file may lie until the run ends.

        Raises:
            BenchError: if something is not installed, or llama.cpp cannot run the model.
        """
        if importlib.util.find_spec("llama_cpp") is None:
            raise BenchError(
                "llama-cpp-python is not installed (uv run --group peers bench --peers)"
            )
        kind = TYPES.get(subject.form.bits)
        if kind is None:
            known = ", ".join(map(str, TYPES))
            raise BenchError(f"llama.cpp is compared at {known} bits, not at {subject.form.bits}")
        path = folder / "model.gguf"
        self._sizes = write_gguf(path, subject.config, kind)
        self._library = importlib.import_module("llama_cpp")
        self._llama = _open(self._library, path, max(len(prompt), context + decode_tokens) + 1)
        self._name = f"llama.cpp {kind.name}"
        self._config = subject.config
        self._prompt = list(prompt)
        self._context = context
        self._filled = False

    @property
    def name(self) -> str:
        """With the type of its weights, which is not quite that of ours."""
        return self._name

    def prefill(self) -> None:
        """In llama.cpp's own chunks."""
        self._llama.reset()
        self._llama.eval(self._prompt)
        self._likeliest()
        self._filled = False

    def rewind(self) -> None:
        """Forget what was decoded; the first time, compute the context."""
        if not self._filled:
            self._llama.reset()
            repeated = self._prompt * (self._context // len(self._prompt) + 1)
            if self._context:
                self._llama.eval(repeated[: self._context])
            self._filled = True
        self._llama.n_tokens = self._context  # `eval` drops what is cached beyond

    def decode(self, tokens: int) -> None:
        """Token by token, each chosen from the logits of the one before."""
        token = self._prompt[0]
        for _ in range(tokens):
            self._llama.eval([token])
            token = self._likeliest()

    def prefill_cost(self) -> Cost:
        """With the bytes of the file's tensors."""
        return prefill_cost(self._config, self._sizes, len(self._prompt), _KEY_BYTES)

    def decode_cost(self, tokens: int) -> Cost:
        """With the bytes of the file's tensors."""
        keys = self._context + (tokens + 1) // 2
        return decode_cost(self._config, self._sizes, keys, _KEY_BYTES)

    def _likeliest(self) -> int:
        """The next token; asking for logits waits until they are computed."""
        logits = self._library.llama_get_logits_ith(self._llama.ctx, -1)
        return int(np.ctypeslib.as_array(logits, (self._llama.n_vocab(),)).argmax())


def _open(library: ModuleType, path: Path, context: int) -> _Llama:
    """Load the file, in silence."""
    cores = usable_cores()
    try:
        llama = library.Llama(
            model_path=str(path),
            n_ctx=context,
            n_threads=cores,
            n_threads_batch=cores,
            n_gpu_layers=-1 if on_gpu() else 0,
            verbose=False,
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise BenchError(f"llama.cpp cannot run this model ({error})") from error
    return cast("_Llama", llama)
