"""Cases of the operations on vectors: norms, rotations, activations, quantization, sampling."""

from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx
from tinyllm_ops import OpSet, Positions, Weight, norm_rope

from tinyllm_bench.cases.case import OpCase, Regime, Work, activations, cases_of, nbytes
from tinyllm_bench.cost import Cost
from tinyllm_bench.models.model import BenchModel

_CACHE_BITS = 4
_TOP_K = 20  # top-k that Qwen3 recommends, and the most log-probabilities of the OpenAI API


def softmax_cases(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases on the attention scores of all heads, in float32 as in attention."""
    heads = model.config.num_attention_heads

    def work(regime: Regime) -> Work:
        x = activations(regime.rows, heads, regime.length, regime.keys, dtype=mx.float32)
        return _elementwise(lambda ops: ops.softmax(x), x)

    return cases_of("softmax", lambda r: f"{heads}x{r.length}x{r.keys}", regimes, work)


def swiglu_cases(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases on the outputs of an MLP's gate and up projections."""
    width = model.config.intermediate_size

    def work(regime: Regime) -> Work:
        gate, up = (_vectors(model, regime, width) for _ in range(2))
        return _elementwise(lambda ops: ops.swiglu(gate, up), gate, up)

    return cases_of("swiglu", str(width), regimes, work)


def rms_norm_cases(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases on hidden states, and on query heads if the model normalizes them."""
    config = model.config

    def cases(*shape: int) -> list[OpCase]:
        def work(regime: Regime) -> Work:
            x = _vectors(model, regime, *shape)
            weight = mx.ones(shape[-1:], x.dtype)
            mx.eval(weight)
            return _elementwise(lambda ops: ops.rms_norm(x, weight, config.rms_norm_eps), x, weight)

        return cases_of("rms_norm", "x".join(map(str, shape)), regimes, work)

    heads = cases(config.num_attention_heads, config.head_dim) if config.qk_norm else []
    return cases(config.hidden_size) + heads


def rope_cases(model: BenchModel, regimes: Sequence[Regime], *, norm: bool = False) -> list[OpCase]:
    """Return cases on queries, with the norm before it if requested. Qwen2 has no norm there.

    In a batch, each sequence has its own position.
    """
    config = model.config
    heads, head_dim = config.num_attention_heads, config.head_dim

    def work(regime: Regime) -> Work:
        x = _vectors(model, regime, heads, head_dim)
        rotation = (_positions(regime), config.rope_theta, False, config.rope_scaling)
        if not norm:
            return _elementwise(lambda ops: ops.rope(x, *rotation), x)
        weight = mx.ones((head_dim,), x.dtype) if config.qk_norm else None
        mx.eval([] if weight is None else weight)
        eps = config.rms_norm_eps
        return _elementwise(lambda ops: norm_rope(ops, x, weight, eps, *rotation), x, weight)

    return cases_of("norm_rope" if norm else "rope", f"{heads}x{head_dim}", regimes, work)


def quantize_cases(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases on new keys of a quantized cache, none if no group size divides the head."""
    heads, head_dim = model.config.num_key_value_heads, model.config.head_dim
    group = next((size for size in (64, 32) if head_dim % size == 0), None)
    if group is None:
        return []

    def work(regime: Regime) -> Work:
        x = activations(regime.rows, heads, regime.length, head_dim, dtype=model.format.dtype)
        packed = x.size * _CACHE_BITS // 8 + 2 * (x.size // group) * x.dtype.size
        return Work(lambda ops, _i: ops.quantize(x, group, _CACHE_BITS), Cost(nbytes(x) + packed))

    return cases_of("quantize", f"{heads}x{head_dim}, {_CACHE_BITS}-bit", regimes, work)


def logits_cases(op: str, model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases on one row of logits per sequence: a prompt, too, has one for its last token."""
    vocabulary, call = model.config.vocab_size, LOGITS_CALLS[op]

    def work(regime: Regime) -> Work:
        x = activations(regime.rows, vocabulary, dtype=model.format.dtype)
        return Work(lambda ops, _i: call(ops, x), Cost(nbytes(x)))

    return cases_of(op, str(vocabulary), regimes, work)


def _log_probabilities(ops: OpSet, x: mx.array) -> mx.array:
    ids = mx.broadcast_to(mx.arange(_TOP_K, dtype=mx.int32), (x.shape[0], _TOP_K))
    return ops.log_probability(x, ids)


LOGITS_CALLS: Mapping[str, Callable[[OpSet, mx.array], mx.array]] = {
    "argmax": lambda ops, x: ops.argmax(x),
    "top_k": lambda ops, x: ops.top_k(x, _TOP_K)[0],
    "log_probability": _log_probabilities,
}


def _elementwise(call: Callable[[OpSet], Weight], x: mx.array, *others: mx.array | None) -> Work:
    """Return work that reads its operands and writes as many bytes as `x` has."""
    return Work(lambda ops, _i: call(ops), Cost(2 * nbytes(x) + nbytes(*others)))


def _vectors(model: BenchModel, regime: Regime, *shape: int) -> mx.array:
    return activations(regime.rows, regime.length, *shape, dtype=model.format.dtype)


def _positions(regime: Regime) -> Positions:
    """Return the positions of new tokens: a slice, or an array for sequences of several lengths."""
    first = regime.keys - regime.length
    if regime.rows == 1:
        return slice(first, first + regime.length)
    positions = mx.arange(regime.rows)[:, None] + mx.arange(first, first + regime.length)
    mx.eval(positions)
    return positions
