"""The operations between the matrices: norms, rotations, activations, attention, the cache."""

from collections.abc import Callable, Sequence

import mlx.core as mx
from tinyllm_ops import OpSet, Weight

from tinyllm_bench.cost import Cost, attention_flops, causal_pairs
from tinyllm_bench.op_case import OpCase, Regime, Work, activations, nbytes
from tinyllm_bench.subject import Subject

_CACHE_BITS = 4
_PAGE = 16


def softmax_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The scores of all heads, in float32 as attention has them."""
    heads = subject.config.num_attention_heads

    def work(regime: Regime) -> Work:
        x = activations(regime.rows, heads, regime.length, regime.keys, dtype=mx.float32)
        return Work(lambda ops, _i: ops.softmax(x), Cost(2 * nbytes(x)))

    return _cases("softmax", lambda r: f"{heads}x{r.length}x{r.keys}", regimes, work)


def silu_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The MLP's gate."""
    width = subject.config.intermediate_size

    def work(regime: Regime) -> Work:
        x = activations(regime.rows, regime.length, width, dtype=subject.form.dtype)
        return Work(lambda ops, _i: ops.silu(x), Cost(2 * nbytes(x)))

    return _cases("silu", _named(str(width)), regimes, work)


def swiglu_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The MLP's gate and what it lets through."""
    width = subject.config.intermediate_size

    def work(regime: Regime) -> Work:
        gate, up = (
            activations(regime.rows, regime.length, width, dtype=subject.form.dtype)
            for _ in range(2)
        )
        return Work(lambda ops, _i: ops.swiglu(gate, up), Cost(3 * nbytes(gate)))

    return _cases("swiglu", _named(str(width)), regimes, work)


def rms_norm_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The norm of a block, and that of the query heads where the model has one."""
    config = subject.config

    def of(shape: tuple[int, ...]) -> Callable[[Regime], Work]:
        def work(regime: Regime) -> Work:
            x = activations(regime.rows, regime.length, *shape, dtype=subject.form.dtype)
            weight = mx.ones(shape[-1:], x.dtype)
            mx.eval(weight)
            cost = Cost(2 * nbytes(x) + nbytes(weight))
            return Work(lambda ops, _i: ops.rms_norm(x, weight, config.rms_norm_eps), cost)

        return work

    shapes: list[tuple[int, ...]] = [(config.hidden_size,)]
    if config.qk_norm:
        shapes.append((config.num_attention_heads, config.head_dim))
    cases = []
    for shape in shapes:
        cases += _cases("rms_norm", _named("x".join(map(str, shape))), regimes, of(shape))
    return cases


def rope_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The queries; in a batch every text stands at a place of its own."""
    config = subject.config
    heads, head_dim = config.num_attention_heads, config.head_dim

    def work(regime: Regime) -> Work:
        x = activations(regime.rows, regime.length, heads, head_dim, dtype=subject.form.dtype)
        first = regime.keys - regime.length
        places = [slice(first + i, first + i + regime.length) for i in range(regime.rows)]
        where = places[0] if regime.rows == 1 else places

        def call(ops: OpSet, _i: int) -> mx.array:
            return ops.rope(x, where, config.rope_theta, False, config.rope_scaling)

        return Work(call, Cost(2 * nbytes(x)))

    return _cases("rope", _named(f"{heads}x{head_dim}"), regimes, work)


def attention_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """All heads of a layer, over a cache of its own for every layer."""
    config = subject.config
    heads, kv_heads, head_dim = (
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
    )

    def work(regime: Regime) -> Work:
        rows, length, keys, dtype = regime.rows, regime.length, regime.keys, subject.form.dtype
        q = activations(rows, heads, length, head_dim, dtype=dtype)
        caches = [
            [activations(rows, kv_heads, keys, head_dim, dtype=dtype) for _ in range(2)]
            for _ in range(config.num_hidden_layers)
        ]
        mask = "causal" if length > 1 else None

        def call(ops: OpSet, i: int) -> mx.array:
            k, v = caches[i % len(caches)]
            return ops.attention(q, k, v, None, mask)

        pairs = rows * causal_pairs(length, keys)
        moved = 2 * nbytes(q) + nbytes(*caches[0])
        return Work(call, Cost(moved, attention_flops(heads, head_dim, pairs)))

    def size(regime: Regime) -> str:
        return f"{heads}/{kv_heads} heads of {head_dim}, {regime.keys} keys"

    return _cases("attention", size, regimes, work)


def paged_attention_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The same over pages, each text with pages of its own."""
    config, page = subject.config, _PAGE
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = config.head_dim

    def work(regime: Regime) -> Work:
        rows, length, keys, dtype = regime.rows, regime.length, regime.keys, subject.form.dtype
        blocks = -(-keys // page)
        q = activations(regime.tokens, heads, head_dim, dtype=dtype)
        caches = [
            [activations(rows * blocks, kv_heads, page, head_dim, dtype=dtype) for _ in range(2)]
            for _ in range(config.num_hidden_layers)
        ]
        table = mx.arange(rows * blocks, dtype=mx.int32).reshape(rows, blocks)
        starts = mx.arange(0, regime.tokens + 1, length, dtype=mx.int32)
        contexts = mx.full((rows,), keys, mx.int32)
        mx.eval(table, starts, contexts)

        def call(ops: OpSet, i: int) -> mx.array:
            k, v = caches[i % len(caches)]
            return ops.paged_attention(q, k, v, table, starts, contexts)

        pairs = rows * causal_pairs(length, keys)
        read = 2 * rows * kv_heads * keys * head_dim * dtype.size
        return Work(call, Cost(2 * nbytes(q) + read, attention_flops(heads, head_dim, pairs)))

    def size(regime: Regime) -> str:
        return f"{heads}/{kv_heads} heads of {head_dim}, {regime.keys} keys in pages of {page}"

    return _cases("paged_attention", size, regimes, work)


def quantize_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """New keys on their way into a quantized cache."""
    config = subject.config
    heads, head_dim = config.num_key_value_heads, config.head_dim
    group = 64 if head_dim % 64 == 0 else 32
    if head_dim % group:
        return []  # the model can have no quantized cache

    def work(regime: Regime) -> Work:
        x = activations(regime.rows, heads, regime.length, head_dim, dtype=subject.form.dtype)
        packed = x.size * _CACHE_BITS // 8 + 2 * (x.size // group) * x.dtype.size

        def call(ops: OpSet, _i: int) -> Weight:
            return ops.quantize(x, group, _CACHE_BITS)

        return Work(call, Cost(nbytes(x) + packed))

    return _cases("quantize", _named(f"{heads}x{head_dim}, 4-bit"), regimes, work)


def _named(size: str) -> Callable[[Regime], str]:
    """The same operand whatever the regime."""
    return lambda _regime: size


def _cases(
    op: str,
    operand: Callable[[Regime], str],
    regimes: Sequence[Regime],
    work: Callable[[Regime], Work],
) -> list[OpCase]:
    """One case a regime."""

    def case(regime: Regime) -> OpCase:
        return OpCase(op, operand(regime), regime, lambda: work(regime))

    return [case(regime) for regime in regimes]
