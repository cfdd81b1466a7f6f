"""The operations between the matrices: norms, rotations, activations, attention, the cache."""

from collections.abc import Callable, Sequence

import mlx.core as mx
from tinyllm_ops import OpSet, PageTable, Weight, norm_rope

from tinyllm_bench.cost import Cost, attention_flops, causal_pairs
from tinyllm_bench.op_case import OpCase, Regime, Work, activations, nbytes
from tinyllm_bench.subject import Subject

_CACHE_BITS = 4
PAGE_SIZE = 16


def softmax_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The scores of all heads, in float32 as attention has them."""
    heads = subject.config.num_attention_heads

    def work(regime: Regime) -> Work:
        x = activations(regime.rows, heads, regime.length, regime.keys, dtype=mx.float32)
        return Work(lambda ops, _i: ops.softmax(x), Cost(2 * nbytes(x)))

    return _cases("softmax", lambda r: f"{heads}x{r.length}x{r.keys}", regimes, work)


def swiglu_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The MLP's gate times its other projection."""
    width = subject.config.intermediate_size

    def work(regime: Regime) -> Work:
        gate, up = (
            activations(regime.rows, regime.length, width, dtype=subject.form.dtype)
            for _ in range(2)
        )
        return Work(lambda ops, _i: ops.swiglu(gate, up), Cost(3 * nbytes(gate)))

    return _cases("swiglu", _named(str(width)), regimes, work)


def rms_norm_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The norm of a layer, and that of the query heads where the model has one."""
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
    """The queries; in a batch each text has a position of its own."""
    config = subject.config
    heads, head_dim = config.num_attention_heads, config.head_dim

    def work(regime: Regime) -> Work:
        x = activations(regime.rows, regime.length, heads, head_dim, dtype=subject.form.dtype)
        positions = _positions(regime)

        def call(ops: OpSet, _i: int) -> mx.array:
            return ops.rope(x, positions, config.rope_theta, False, config.rope_scaling)

        return Work(call, Cost(2 * nbytes(x)))

    return _cases("rope", _named(f"{heads}x{head_dim}"), regimes, work)


def norm_rope_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The path of queries from their projection to attention; without a norm in Qwen2."""
    config = subject.config
    heads, head_dim = config.num_attention_heads, config.head_dim

    def work(regime: Regime) -> Work:
        x = activations(regime.rows, regime.length, heads, head_dim, dtype=subject.form.dtype)
        weight = mx.ones((head_dim,), x.dtype) if config.qk_norm else None
        mx.eval([] if weight is None else weight)
        positions = _positions(regime)

        def call(ops: OpSet, _i: int) -> mx.array:
            return norm_rope(
                ops,
                x,
                weight,
                config.rms_norm_eps,
                positions,
                config.rope_theta,
                False,
                config.rope_scaling,
            )

        return Work(call, Cost(2 * nbytes(x) + nbytes(weight)))

    return _cases("norm_rope", _named(f"{heads}x{head_dim}"), regimes, work)


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
            return ops.attention(q, k, v, None, mask, phase=regime.phase)

        pairs = rows * causal_pairs(length, keys)
        moved = 2 * nbytes(q) + nbytes(*caches[0])
        return Work(call, Cost(moved, attention_flops(heads, head_dim, pairs)))

    def size(regime: Regime) -> str:
        return f"{heads}/{kv_heads} heads of {head_dim}, {regime.keys} keys"

    return _cases("attention", size, regimes, work)


def paged_attention_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The same over pages, each text with pages of its own."""
    config, page = subject.config, PAGE_SIZE
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = config.head_dim

    def work(regime: Regime) -> Work:
        rows, keys, dtype = regime.rows, regime.keys, subject.form.dtype
        blocks = -(-keys // page)
        q = activations(regime.tokens, heads, head_dim, dtype=dtype)
        caches = [
            [activations(rows * blocks, kv_heads, page, head_dim, dtype=dtype) for _ in range(2)]
            for _ in range(config.num_hidden_layers)
        ]
        table = page_table(regime, page)

        def call(ops: OpSet, i: int) -> mx.array:
            k, v = caches[i % len(caches)]
            return ops.paged_attention(q, k, v, table, phase=regime.phase)

        pairs = rows * causal_pairs(regime.length, keys)
        read = 2 * rows * kv_heads * keys * head_dim * dtype.size
        return Work(call, Cost(2 * nbytes(q) + read, attention_flops(heads, head_dim, pairs)))

    def size(regime: Regime) -> str:
        return f"{heads}/{kv_heads} heads of {head_dim}, {regime.keys} keys in pages of {page}"

    return _cases("paged_attention", size, regimes, work)


def quantize_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """New keys of a quantized cache."""
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


def page_table(regime: Regime, page_size: int) -> PageTable:
    """The pages of a regime: each text has pages of its own, and their arrays are computed."""
    count = -(-regime.keys // page_size)
    table = PageTable.of(
        [
            (range(row * count, (row + 1) * count), regime.keys - regime.length, regime.keys)
            for row in range(regime.rows)
        ],
        num_pages=regime.rows * count,
        page_size=page_size,
    )
    arrays = table.arrays
    mx.eval(
        arrays.block_tables,
        arrays.cu_seqlens_q,
        arrays.seq_lens,
        arrays.positions,
        arrays.slot_mapping,
    )
    return table


def _positions(regime: Regime) -> slice | list[slice]:
    """The positions of new tokens: one slice, or one a text, each with an offset of its own."""
    first = regime.keys - regime.length
    rows = [slice(first + i, first + i + regime.length) for i in range(regime.rows)]
    return rows[0] if regime.rows == 1 else rows


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
