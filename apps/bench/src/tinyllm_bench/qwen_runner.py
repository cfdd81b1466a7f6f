"""Our model, with one OpSet."""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
from tinyllm_layers import KVCache
from tinyllm_ops import OpSet, Weight
from tinyllm_qwen import Qwen
from tinyllm_qwen.generate import PREFILL_CHUNK

from tinyllm_bench.cost import Cost
from tinyllm_bench.model_cost import decode_cost, prefill_cost, weight_bytes
from tinyllm_bench.runner import Runner
from tinyllm_bench.subject import Subject


class QwenRunner(Runner):
    """`Qwen`, driven as `tinyllm_qwen.generate` drives it, without a tokenizer."""

    def __init__(self, subject: Subject, ops: OpSet, prompt: Sequence[int], context: int) -> None:
        """Hang the weights into a model.

        Args:
            subject: architecture and weights, which runners share.
            ops: what computes.
            prompt: token ids.
            context: tokens in the cache when decoding begins; their keys and values are random,
                since computing them would take longer than what is measured.
        """
        self._subject = subject
        weights = dict(subject.weights)
        ops.prepare(weights)
        self._model = Qwen(subject.config, weights, ops=ops)
        self._prompt = mx.array(list(prompt), dtype=mx.int32)
        self._context = context
        self._cache: list[KVCache] | None = None

    @property
    def name(self) -> str:
        """That of the OpSet."""
        return self._model.ops.name

    def prefill(self) -> None:
        """As `generate` does it: all tokens but the last without logits, in chunks, then the last.

        What nobody asks for is not computed: most of the last block, and the head.
        """
        cache, last = self._model.make_cache(), len(self._prompt) - 1
        for start in range(0, last, PREFILL_CHUNK):
            chunk = self._prompt[None, start : min(start + PREFILL_CHUNK, last)]
            self._model(chunk, cache, last_only=True)
            mx.eval([array for block in cache for array in block.arrays])
        mx.eval(self._next(self._prompt[last:], cache))

    def rewind(self) -> None:
        """Forget what was decoded, where the cache can; otherwise fill a new one."""
        cache = self._cache
        if cache is not None and all(block.can_trim(self._context) for block in cache):
            for block in cache:
                block.trim(self._context)
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
        """The likeliest token after these."""
        logits = self._model(tokens[None], cache, last_only=True)
        return self._model.ops.argmax(logits[0])

    def _filled_cache(self) -> list[KVCache]:
        """Caches that hold the context, handed over through an attention that computes nothing."""
        config, cache = self._subject.config, self._model.make_cache()
        if self._context == 0:
            return cache
        ops = replace(self._model.ops, attention=_no_attention)
        dtype = self._model.dtype
        shape = (1, config.num_key_value_heads, self._context, config.head_dim)
        k, v = (mx.random.normal(shape).astype(dtype) for _ in range(2))
        q = mx.zeros((1, config.num_attention_heads, self._context, config.head_dim), dtype)
        for block in cache:
            block.attend(q, k, v, 1.0, ops)
        mx.eval([array for block in cache for array in block.arrays])
        return cache


def _no_attention(
    q: mx.array,
    k: Weight,
    v: Weight,
    scale: float | None = None,
    mask: mx.array | str | None = None,
) -> mx.array:
    """An attention for filling caches: nothing is asked of what they hold."""
    del k, v, scale, mask
    return q
