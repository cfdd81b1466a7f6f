"""mlx-lm, with the very weights that ours has."""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Protocol, cast, runtime_checkable

import mlx.core as mx
from tinyllm_ops import QuantizedTensor

from tinyllm_bench.cost import Cost
from tinyllm_bench.errors import BenchError
from tinyllm_bench.model_cost import decode_cost, prefill_cost, weight_bytes
from tinyllm_bench.runner import Runner
from tinyllm_bench.subject import Subject

_CHUNK = 2048  # mlx-lm's own


@runtime_checkable
class _Cache(Protocol):
    """What is asked of `mlx_lm.models.cache.KVCache`."""

    offset: int
    state: tuple[mx.array, ...]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> object: ...

    def trim(self, n: int) -> int: ...


@runtime_checkable
class _Model(Protocol):
    """What is asked of a model of mlx-lm, an `mlx.nn.Module`."""

    def __call__(self, tokens: mx.array, cache: list[_Cache]) -> mx.array: ...

    def load_weights(self, weights: list[tuple[str, mx.array]]) -> object: ...

    def parameters(self) -> dict[str, object]: ...


class MlxLmRunner(Runner):
    """mlx-lm's model, driven by the loop that mlx-lm generates with."""

    def __init__(self, subject: Subject, prompt: Sequence[int], context: int) -> None:
        """Hang the weights into mlx-lm's model.

        Raises:
            BenchError: if mlx-lm is not installed, or cannot run the model.
        """
        if importlib.util.find_spec("mlx_lm") is None:
            raise BenchError("mlx-lm is not installed (pip install mlx-lm)")
        caches = importlib.import_module("mlx_lm.models.cache")
        try:
            self._model = _build(subject)
        except (ImportError, TypeError, ValueError) as error:
            raise BenchError(f"mlx-lm cannot run this model ({error})") from error
        self._make_cache = cast("Callable[[object], list[_Cache]]", caches.make_prompt_cache)
        self._subject = subject
        self._prompt = mx.array(list(prompt), dtype=mx.int32)
        self._context = context
        self._cache: list[_Cache] | None = None

    @property
    def name(self) -> str:
        """See `Runner`."""
        return "mlx-lm"

    def prefill(self) -> None:
        """As mlx-lm does it: all tokens but the last without logits, in chunks, then the last."""
        cache, last = self._make_cache(self._model), len(self._prompt) - 1
        for start in range(0, last, _CHUNK):
            self._model(self._prompt[None, start : min(start + _CHUNK, last)], cache=cache)
            mx.eval([block.state[:2] for block in cache])
        mx.eval(self._next(self._prompt[last:], cache))

    def rewind(self) -> None:
        """Forget what was decoded."""
        if self._cache is None:
            self._cache = self._filled_cache()
        for block in self._cache:
            block.trim(block.offset - self._context)

    def decode(self, tokens: int) -> None:
        """The next token is scheduled before the current one is waited for, as mlx-lm does it."""
        cache = self._filled_cache() if self._cache is None else self._cache
        token = self._next(self._prompt[:1], cache)
        mx.async_eval(token)
        for _ in range(tokens - 1):
            following = self._next(token, cache)
            mx.async_eval(following)
            mx.eval(token)
            token = following
        mx.eval(token)
        self._cache = cache

    def prefill_cost(self) -> Cost:
        """The same as ours."""
        sizes, width = weight_bytes(self._subject.weights), self._subject.form.dtype.size
        return prefill_cost(self._subject.config, sizes, len(self._prompt), width)

    def decode_cost(self, tokens: int) -> Cost:
        """The same as ours."""
        sizes, width = weight_bytes(self._subject.weights), self._subject.form.dtype.size
        return decode_cost(self._subject.config, sizes, self._context + (tokens + 1) // 2, width)

    def _next(self, tokens: mx.array, cache: list[_Cache]) -> mx.array:
        """The likeliest token after these."""
        logits = self._model(tokens[None], cache=cache)
        return mx.argmax(logits[0, -1], keepdims=True)

    def _filled_cache(self) -> list[_Cache]:
        """Caches that hold the context, of random keys and values."""
        config, cache = self._subject.config, self._make_cache(self._model)
        if self._context:
            shape = (1, config.num_key_value_heads, self._context, config.head_dim)
            k, v = (mx.random.normal(shape).astype(self._subject.form.dtype) for _ in range(2))
            for block in cache:
                block.update_and_fetch(k, v)
                mx.eval(block.state[:2])
        return cache


def _build(subject: Subject) -> _Model:
    """The model class that mlx-lm has for this type, with packed layers where ours has them."""
    kind = importlib.import_module(f"mlx_lm.models.{subject.config.model_type}")
    model = cast("_Model", kind.Model(kind.ModelArgs.from_dict(dict(subject.hf))))
    packed = {name for name, w in subject.weights.items() if isinstance(w, QuantizedTensor)}

    def chosen(path: str, _module: object) -> bool:
        return f"{path.removeprefix('model.')}.weight" in packed

    if packed:
        form, nn = subject.form, importlib.import_module("mlx.nn")
        nn.quantize(model, form.group_size, form.bits, mode=form.mode, class_predicate=chosen)
    model.load_weights(list(subject.arrays()))
    mx.eval(model.parameters())
    return model
