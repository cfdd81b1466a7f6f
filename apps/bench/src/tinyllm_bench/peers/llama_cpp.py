"""Runner of llama.cpp through `llama-cpp-python`."""

import importlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tinyllm_cli.cores import usable_cores
from tinyllm_kernels.backend import on_gpu

from tinyllm_bench.cases.whole_model import LocalRunner

KV_NUMBER_BYTES = 2  # the default cache of llama.cpp is float16


class LlamaCppRunner(LocalRunner):
    """Runs a GGUF file in llama.cpp, on all cores or on the GPU."""

    def __init__(
        self,
        path: Path,
        prompt: Sequence[int],
        context: int,
        decode_tokens: int,
        *,
        recurrent: bool = False,
    ) -> None:
        """Load the file, with space for the prompt, and for the context and decoded tokens.

        A `recurrent` state cannot drop tokens: the context is then computed each time.
        """
        self._library = importlib.import_module("llama_cpp")
        cores = usable_cores()
        self._llama = self._library.Llama(
            model_path=str(path),
            n_ctx=max(len(prompt), context + decode_tokens) + 1,
            n_threads=cores,
            n_threads_batch=cores,
            n_gpu_layers=-1 if on_gpu() else 0,
            verbose=False,
        )
        self._prompt = list(prompt)
        self._context = context
        self._context_cached = False
        self._recurrent = recurrent

    def prefill(self) -> None:
        """Read the prompt in llama.cpp's own chunks."""
        self._llama.reset()
        self._llama.eval(self._prompt)
        self._most_probable()
        self._context_cached = False

    def rewind(self) -> None:
        """Drop the decoded tokens. The first time, compute the context: the prompt, repeated."""
        if self._recurrent or not self._context_cached:
            self._llama.reset()
            repeated = self._prompt * (self._context // len(self._prompt) + 1)
            if self._context:
                self._llama.eval(repeated[: self._context])
            self._context_cached = True
        self._llama.n_tokens = self._context  # `eval` drops all cached tokens beyond

    def decode(self, tokens: int) -> None:
        """Choose each token from the logits after the previous token."""
        token = self._prompt[0]
        for _ in range(tokens):
            self._llama.eval([token])
            token = self._most_probable()

    def _most_probable(self) -> int:
        """Return the next token. Reading the logits waits until they are computed."""
        logits = self._library.llama_get_logits_ith(self._llama.ctx, -1)
        return int(np.ctypeslib.as_array(logits, (self._llama.n_vocab(),)).argmax())
