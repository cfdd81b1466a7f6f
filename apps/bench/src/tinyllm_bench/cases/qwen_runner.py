"""Runner of tinyllm's own model with one OpSet."""

from collections.abc import Sequence

import mlx.core as mx
from tinyllm_layers import Batch, KVCache, SequenceCache
from tinyllm_layers.cache.dense import CAPACITY_STEP
from tinyllm_ops import OpSet, Phase
from tinyllm_qwen import Qwen
from tinyllm_qwen.caches import cache_arrays
from tinyllm_qwen.generate import PREFILL_CHUNK

from tinyllm_bench.cases.case import prepare
from tinyllm_bench.cases.whole_model import LocalRunner
from tinyllm_bench.cost import ModelCosts
from tinyllm_bench.models.model import BenchModel


class QwenRunner(LocalRunner):
    """Runs `Qwen` with the same loop as `tinyllm_qwen.generate`, without a tokenizer."""

    def __init__(
        self,
        model: BenchModel,
        ops: OpSet,
        prompt: Sequence[int],
        context: int,
        kv_bits: int | None = None,
    ) -> None:
        """Build the model.

        The `context` tokens in the cache have random keys and values, because computing them would
        take longer than the measurement. The weights of `model` get the layout of the OpSet, so
        that a second OpSet of this layout, or an only one, needs no copy of them. Cached keys and
        values have `kv_bits` bits, or None for the dtype of the model.
        """
        prepare(ops, model.weights)
        self._model = Qwen(model.config, model.weights, ops=ops)
        self._prompt = mx.array(list(prompt), dtype=mx.int32)
        self._context = context
        self._kv_bits = kv_bits
        self._cache: list[SequenceCache] = []  # `rewind` fills it
        self.name = ops.name
        self.costs = ModelCosts(model.config, model.stored_bytes, self._model.dtype.size, kv_bits)

    def prefill(self) -> None:
        """Compute the prompt in chunks as `generate` does, and the logits of its last token."""
        cache, length = self._model.make_caches(kv_bits=self._kv_bits), len(self._prompt)
        last = (length - 1) // PREFILL_CHUNK * PREFILL_CHUNK  # the start of the last chunk
        for layer in cache:
            layer.set_expected_length(length + CAPACITY_STEP)
        self._compute(self._prompt[:last], cache)
        token = self._next(self._prompt[last:], cache, "prefill")
        mx.eval(token, cache_arrays(cache))

    def rewind(self) -> None:
        """Trim the cache to the context, or fill a new one if the cache cannot be trimmed."""
        if self._cache and all(layer.can_trim(self._context) for layer in self._cache):
            for layer in self._cache:
                layer.trim(self._context)
        else:
            self._cache = self._filled_cache()

    def decode(self, tokens: int) -> None:
        """Build the graph of the next token while the current one is computed, as in `generate`."""
        token = self._next(self._prompt[:1], self._cache, "decode")
        mx.async_eval(token)
        for _ in range(tokens - 1):
            following = self._next(token, self._cache, "decode")
            mx.eval(token)
            mx.async_eval(following)
            token = following
        mx.eval(token)

    def _compute(self, tokens: mx.array, cache: Sequence[SequenceCache]) -> None:
        """Compute the first tokens of a text in chunks, without logits."""
        for start in range(0, len(tokens), PREFILL_CHUNK):
            chunk = tokens[None, start : start + PREFILL_CHUNK]
            self._model.hidden(chunk, Batch.at(start, 1, chunk.shape[1], "prefill"), cache)
            mx.eval(cache_arrays(cache))

    def _next(self, tokens: mx.array, cache: Sequence[SequenceCache], phase: Phase) -> mx.array:
        """Return the most probable token after `tokens`."""
        batch = Batch.at(cache[0].offset, 1, len(tokens), phase)
        logits = self._model(tokens[None], cache, batch=batch, last=1)
        return self._model.ops.argmax(logits.squeeze(0))

    def _filled_cache(self) -> list[SequenceCache]:
        """Return caches with random keys and values for the context.

        States of recurrent layers cannot be drawn, so that such a model computes random tokens.
        """
        config, cache = self._model.config, self._model.make_caches(kv_bits=self._kv_bits)
        if self._context == 0:
            return cache
        if config.recurrent is not None:
            self._compute(mx.random.randint(0, config.vocab_size, (self._context,)), cache)
            return cache
        shape = (1, config.num_key_value_heads, self._context, config.head_dim)
        k, v = (mx.random.normal(shape).astype(self._model.dtype) for _ in range(2))
        for layer in cache:
            assert isinstance(layer, KVCache)
            layer.update(k, v)
        mx.eval(cache_arrays(cache))
        return cache
