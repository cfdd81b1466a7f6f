"""Cases of attention over dense and paged caches."""

from collections.abc import Sequence

import mlx.core as mx
from tinyllm_ops import OpSet, PageTable

from tinyllm_bench.cases.case import OpCase, Regime, Work, activations, cases_of, nbytes
from tinyllm_bench.cost import Cost, attention_flops, causal_pairs
from tinyllm_bench.models.model import BenchModel

PAGE_SIZE = 16


def attention_cases(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases of attention over all heads of a layer. Each layer has its own cache."""
    config, dtype = model.config, model.format.dtype
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = config.head_dim

    def work(regime: Regime) -> Work:
        rows, length, keys = regime.rows, regime.length, regime.keys
        q = activations(rows, heads, length, head_dim, dtype=dtype)
        caches = _caches(model, rows, kv_heads, keys, head_dim)
        mask = "causal" if length > 1 else None

        def call(ops: OpSet, i: int) -> mx.array:
            k, v = caches[i % len(caches)]
            return ops.attention(q, k, v, None, mask, phase=regime.phase)

        flops = attention_flops(heads, head_dim, rows * causal_pairs(length, keys))
        return Work(call, Cost(2 * nbytes(q) + nbytes(*caches[0]), flops))

    def operand(regime: Regime) -> str:
        return f"{heads}/{kv_heads} heads of {head_dim}, {regime.keys} keys"

    return cases_of("attention", operand, regimes, work)


def paged_attention_cases(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases of attention over paged keys and values. Each sequence has its own pages."""
    config, dtype = model.config, model.format.dtype
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = config.head_dim

    def work(regime: Regime) -> Work:
        rows, keys = regime.rows, regime.keys
        q = activations(regime.tokens, heads, head_dim, dtype=dtype)
        table = page_table(regime)
        caches = _caches(model, table.num_pages, kv_heads, PAGE_SIZE, head_dim)

        def call(ops: OpSet, i: int) -> mx.array:
            k, v = caches[i % len(caches)]
            return ops.paged_attention(q, k, v, table, phase=regime.phase)

        flops = attention_flops(heads, head_dim, rows * causal_pairs(regime.length, keys))
        read = 2 * rows * kv_heads * keys * head_dim * dtype.size
        return Work(call, Cost(2 * nbytes(q) + read, flops))

    def operand(regime: Regime) -> str:
        size = f"{heads}/{kv_heads} heads of {head_dim}"
        return f"{size}, {regime.keys} keys in pages of {PAGE_SIZE}"

    return cases_of("paged_attention", operand, regimes, work)


def page_table(regime: Regime) -> PageTable:
    """Return the page table of a regime, and evaluate its arrays before any call is timed."""
    count = -(-regime.keys // PAGE_SIZE)
    table = PageTable.of(
        [
            (range(row * count, (row + 1) * count), regime.keys - regime.length, regime.keys)
            for row in range(regime.rows)
        ],
        num_pages=regime.rows * count,
        page_size=PAGE_SIZE,
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


def _caches(model: BenchModel, *shape: int) -> list[tuple[mx.array, mx.array]]:
    """Draw random keys and values of a shape for each layer."""
    dtype = model.format.dtype
    return [
        (activations(*shape, dtype=dtype), activations(*shape, dtype=dtype))
        for _ in range(model.config.num_hidden_layers)
    ]
