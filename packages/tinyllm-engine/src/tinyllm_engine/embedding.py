"""The embedding of a text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

import mlx.core as mx
from tinyllm_layers import Batch
from tinyllm_qwen.language_model import LanguageModel

from tinyllm_engine.schedule.prefill_budget import PrefillBudget


class EmbeddingRequest:
    """An embedding request in progress, computed one chunk at a time.

    The embedding is the hidden state of the last token after the final norm, scaled to length 1:
    the pooling of Qwen3-Embedding (Zhang et al. 2025).
    """

    def __init__(self, model: LanguageModel, tokens: Sequence[int], budget: PrefillBudget) -> None:
        """Prepare the request; `advance` computes it.

        Args:
            model: the model.
            tokens: the token ids of the text, not empty and within the context of the model.
            budget: sets the number of tokens in a chunk from the measured speed of earlier chunks.
        """
        self._model = model
        self._budget = budget
        self._cache = model.make_cache()
        self._tokens = list(tokens)
        self._computed = 0

    def advance(self) -> list[float] | None:
        """Compute the next chunk.

        Returns:
            The embedding, E numbers, after the last chunk; None after every other chunk.
        """
        started = time.perf_counter()
        chunk = self._tokens[self._computed : self._computed + self._budget.tokens]
        batch = Batch.at(self._computed, 1, len(chunk), "prefill")
        h = self._model.hidden(mx.array([chunk], dtype=mx.int32), batch, self._cache)
        mx.eval(h, *(array for layer in self._cache for array in layer.arrays))
        self._budget.observe(len(chunk), time.perf_counter() - started)
        self._computed += len(chunk)
        if self._computed < len(self._tokens):
            return None
        state = self._model.norm(h[0, -1]).astype(mx.float32)
        return cast(list[float], (state / mx.linalg.norm(state)).tolist())
