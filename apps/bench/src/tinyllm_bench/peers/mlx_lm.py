"""Runner of mlx-lm with the same weights as tinyllm."""

import importlib
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from tinyllm_ops import QuantizedTensor

from tinyllm_bench.cases.whole_model import LocalRunner
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.settings import Settings

_CHUNK = 2048  # as in mlx-lm


def make_runner(settings: Settings, prompt: Sequence[int]) -> LocalRunner:
    """Make the model of the settings and its runner, in a child process."""
    return MlxLmRunner(BenchModel.make(settings), prompt, settings.context_tokens)


class MlxLmRunner(LocalRunner):
    """Model of mlx-lm, driven by the loop of mlx-lm's `generate`."""

    def __init__(self, model: BenchModel, prompt: Sequence[int], context: int) -> None:
        """Load the weights into the model of mlx-lm."""
        caches = importlib.import_module("mlx_lm.models.cache")
        self._make_cache = caches.make_prompt_cache
        self._model = _build(model)
        self._config, self._dtype = model.config, model.format.dtype
        self._prompt = mx.array(list(prompt), dtype=mx.int32)
        self._context = context
        self._cache: list[Any] = []  # `rewind` fills it

    def prefill(self) -> None:
        """Compute the prompt in chunks without logits, then its last token with logits."""
        cache, last = self._make_cache(self._model), len(self._prompt) - 1
        for start in range(0, last, _CHUNK):
            self._model(self._prompt[None, start : min(start + _CHUNK, last)], cache=cache)
            mx.eval([layer.state[:2] for layer in cache])
        mx.eval(self._next(self._prompt[last:], cache))

    def rewind(self) -> None:
        """Trim the cache to the context."""
        if not self._cache:
            self._cache = self._filled_cache()
        for layer in self._cache:
            layer.trim(layer.offset - self._context)

    def decode(self, tokens: int) -> None:
        """Schedule the next token before waiting for the current one, as mlx-lm does."""
        token = self._next(self._prompt[:1], self._cache)
        mx.async_eval(token)
        for _ in range(tokens - 1):
            following = self._next(token, self._cache)
            mx.async_eval(following)
            mx.eval(token)
            token = following
        mx.eval(token)

    def _next(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Return the most probable token after these tokens."""
        logits = self._model(tokens[None], cache=cache)
        return mx.argmax(logits[0, -1], keepdims=True)

    def _filled_cache(self) -> list[Any]:
        """Return caches with random keys and values for the context."""
        cache: list[Any] = self._make_cache(self._model)
        if self._context:
            shape = (1, self._config.num_key_value_heads, self._context, self._config.head_dim)
            k, v = (mx.random.normal(shape).astype(self._dtype) for _ in range(2))
            for layer in cache:
                layer.update_and_fetch(k, v)
                mx.eval(layer.state[:2])
        return cache


def _build(model: BenchModel) -> Any:
    """Return the model of mlx-lm, with the same quantized layers as `model`."""
    kind = importlib.import_module(f"mlx_lm.models.{model.config.model_type}")
    built = kind.Model(kind.ModelArgs.from_dict(dict(model.hf)))
    quantized = {name for name, w in model.weights.items() if isinstance(w, QuantizedTensor)}

    def is_quantized(path: str, _module: object) -> bool:
        return f"{path.removeprefix('model.')}.weight" in quantized

    if quantized:
        weights, nn = model.format, importlib.import_module("mlx.nn")
        nn.quantize(
            built, weights.group_size, weights.bits, mode=weights.mode, class_predicate=is_quantized
        )
    built.load_weights(list(model.arrays()))
    mx.eval(built.parameters())
    return built
