"""Cases of attention over dense and paged caches."""

from collections.abc import Sequence

import mlx.core as mx
from tinyllm_ops import Mask, OpSet, PageTable

from tinyllm_bench.cases.case import OpCase, Regime, Work, activations, cases_of, nbytes
from tinyllm_bench.cost import Cost, attention_flops, causal_pairs
from tinyllm_bench.models.model import BenchModel

PAGE_SIZE = 16


def attention_cases(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases on all heads of a layer. Each layer has its own cache."""
    (heads, kv_heads, head_dim), dtype = _heads(model), model.format.dtype

    def work(regime: Regime) -> Work:
        q = activations(regime.rows, heads, regime.length, head_dim, dtype=dtype)
        caches = _caches(model, regime.rows, kv_heads, regime.keys, head_dim)
        mask: Mask = "causal" if regime.length > 1 else None

        def call(ops: OpSet, i: int) -> mx.array:
            k, v = caches[i % len(caches)]
            return ops.attention(q, k, v, None, mask, phase=regime.phase)

        return Work(call, Cost(2 * nbytes(q) + nbytes(*caches[0]), _flops(model, regime)))

    size = f"{heads}/{kv_heads} heads of {head_dim}"
    return cases_of("attention", lambda r: f"{size}, {r.keys} keys", regimes, work)


def paged_attention_cases(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases on all heads of a layer over pages. Each sequence has its own pages."""
    (heads, kv_heads, head_dim), dtype = _heads(model), model.format.dtype

    def work(regime: Regime) -> Work:
        q = activations(regime.tokens, heads, head_dim, dtype=dtype)
        table = page_table(regime)
        caches = _caches(model, table.num_pages, kv_heads, PAGE_SIZE, head_dim)

        def call(ops: OpSet, i: int) -> mx.array:
            k, v = caches[i % len(caches)]
            return ops.paged_attention(q, k, v, table, phase=regime.phase)

        read = 2 * regime.rows * kv_heads * regime.keys * head_dim * dtype.size
        return Work(call, Cost(2 * nbytes(q) + read, _flops(model, regime)))

    size, pages = f"{heads}/{kv_heads} heads of {head_dim}", f"keys in pages of {PAGE_SIZE}"
    return cases_of("paged_attention", lambda r: f"{size}, {r.keys} {pages}", regimes, work)


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
    of = table.arrays
    mx.eval(of.block_tables, of.cu_seqlens_q, of.seq_lens, of.positions, of.slot_mapping)
    return table


def _heads(model: BenchModel) -> tuple[int, int, int]:
    """Return the query heads, the heads of keys and values, and their dimension."""
    config = model.config
    return config.num_attention_heads, config.num_key_value_heads, config.head_dim


def _flops(model: BenchModel, regime: Regime) -> int:
    """Return the operations of one call."""
    heads, _, head_dim = _heads(model)
    pairs = regime.rows * causal_pairs(regime.length, regime.keys)
    return attention_flops(heads, head_dim, pairs)


def _caches(model: BenchModel, *shape: int) -> list[tuple[mx.array, mx.array]]:
    """Draw keys and values for each layer."""

    def draw() -> mx.array:
        return activations(*shape, dtype=model.format.dtype)

    return [(draw(), draw()) for _ in range(model.config.num_hidden_layers)]
