"""Our model, with one OpSet."""

from collections.abc import Sequence

import mlx.core as mx
from tinyllm_layers import Batch, KVCache
from tinyllm_ops import OpSet
from tinyllm_qwen import Qwen
from tinyllm_qwen.generate import PREFILL_CHUNK

from tinyllm_bench.cost import Cost
from tinyllm_bench.model_cost import decode_cost, prefill_cost, weight_bytes
from tinyllm_bench.prepared_layers import prepare
from tinyllm_bench.runner import Runner
from tinyllm_bench.subject import Subject


class QwenRunner(Runner):
    """`Qwen`, driven as `tinyllm_qwen.generate` drives it, without a tokenizer."""

    def __init__(self, subject: Subject, ops: OpSet, prompt: Sequence[int], context: int) -> None:
        """Make a model of the weights.

        Args:
            subject: architecture and weights, which runners share.
            ops: what computes.
            prompt: token ids.
            context: tokens in the cache when decoding begins; their keys and values are random,
                since computing them would take longer than what is measured.
        """
        self._subject = subject
        weights = dict(subject.weights)
        prepare(ops, weights)
        self._model = Qwen(subject.config, weights, ops=ops)
        self._prompt = mx.array(list(prompt), dtype=mx.int32)
        self._context = context
        self._cache: list[KVCache] | None = None

    @property
    def name(self) -> str:
        """That of the OpSet."""
        return self._model.ops.name

    def prefill(self) -> None:
        """Compute all tokens but the last without logits, in chunks, then the last one.

        As in `generate`, results that are not used are not computed: most of the last layer, and
        the head.
        """
        cache, last = self._model.make_cache(), len(self._prompt) - 1
        for start in range(0, last, PREFILL_CHUNK):
            chunk = self._prompt[None, start : min(start + PREFILL_CHUNK, last)]
            batch = Batch.at(start, 1, chunk.shape[1], "prefill")
            self._model.hidden(chunk, batch, cache)
            mx.eval([array for layer in cache for array in layer.arrays])
        mx.eval(self._next(self._prompt[last:], cache))

    def rewind(self) -> None:
        """Forget what was decoded, where the cache can; otherwise fill a new one."""
        cache = self._cache
        if cache is not None and all(layer.can_trim(self._context) for layer in cache):
            for layer in cache:
                layer.trim(self._context)
            return
        self._cache = self._filled_cache()

    def decode(self, tokens: int) -> None:
        """The next token's graph is built while the current one computes, as in `generate`."""
        cache = self._filled_cache() if self._cache is None else self._cache
        token = self._next(self._prompt[:1], cache)
        mx.async_eval(token)
        for _ in range(tokens - 1):
            following = self._next(token, cache)
            mx.eval(token)
            mx.async_eval(following)
            token = following
        mx.eval(token)
        self._cache = cache

    def prefill_cost(self) -> Cost:
        """See `Runner`."""
        sizes, width = weight_bytes(self._subject.weights), self._model.dtype.size
        return prefill_cost(self._subject.config, sizes, len(self._prompt), width)

    def decode_cost(self, tokens: int) -> Cost:
        """See `Runner`."""
        sizes, width = weight_bytes(self._subject.weights), self._model.dtype.size
        return decode_cost(self._subject.config, sizes, self._context + (tokens + 1) // 2, width)

    def _next(self, tokens: mx.array, cache: Sequence[KVCache]) -> mx.array:
        """The most probable token after a single one."""
        batch = Batch.at(cache[0].offset, 1, 1, "decode")
        logits = self._model(tokens[None], cache, batch, last=1)
        return self._model.ops.argmax(logits[0])

    def _filled_cache(self) -> list[KVCache]:
        """Caches that hold the context: random keys and values."""
        config, cache = self._subject.config, self._model.make_cache()
        if self._context == 0:
            return cache
        dtype = self._model.dtype
        shape = (1, config.num_key_value_heads, self._context, config.head_dim)
        k, v = (mx.random.normal(shape).astype(dtype) for _ in range(2))
        for layer in cache:
            layer.update(k, v)
        mx.eval([array for layer in cache for array in layer.arrays])
        return cache
