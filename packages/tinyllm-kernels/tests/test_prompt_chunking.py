"""Attention gives a query the same bits in every chunking of its prompt.

Chunks of one token need the phase "prefill": by their shape they would be decode steps.
"""

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import OpSet, PageTable, Phase, Weight, quantize
from tinyllm_ops.testing import normal

pytestmark = pytest.mark.exhaustive

# Enough queries for several blocks of queries, and enough keys for two splits.
QUERIES, KEYS, PAGE = 230, 2170, 16
OFFSET = KEYS - QUERIES
# H, Hkv, D
SHAPES = [(6, 2, 64), (1, 1, 96), (9, 1, 32)]


def cuts(seed: int) -> list[int]:
    """Return the edges of chunks of one token and more."""
    rng = np.random.default_rng(seed)
    edges = [0]
    while QUERIES - edges[-1] > 200:
        edges.append(edges[-1] + int(rng.choice([1, 1, 2, 3, 4, 7, 33])))
    while QUERIES - edges[-1] > 20:
        edges.append(edges[-1] + int(rng.integers(1, 19)))
    return [*edges, QUERIES]


def stored(shape: tuple[int, ...], dtype: mx.Dtype, bits: int | None, seed: int) -> Weight:
    """Return keys or values, quantized to `bits` bits."""
    x = normal(shape, dtype, seed=seed)
    return x if bits is None else quantize(x, 32, bits)


@pytest.mark.parametrize(
    ("shape", "bits"),
    [(SHAPES[0], 8), (SHAPES[0], 4), *((shape, None) for shape in SHAPES)],
    ids=str,
)
def test_chunks_over_a_dense_cache(
    ops: OpSet, dtype: mx.Dtype, shape: tuple[int, int, int], bits: int | None
) -> None:
    heads, kv_heads, dim = shape
    q = normal((heads, QUERIES, dim), dtype, seed=1)
    k, v = (stored((kv_heads, KEYS, dim), dtype, bits, seed) for seed in (2, 3))

    def attend(first: int, last: int) -> mx.array:
        seen = (slice(None), slice(None, OFFSET + last))
        return ops.attention(q[:, first:last], k[seen], v[seen], None, "causal", phase="prefill")

    whole = attend(0, QUERIES)
    parts = [attend(*edges) for edges in pairwise(cuts(seed=4))]
    assert mx.array_equal(mx.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize(("window", "bits"), [(None, None), (None, 8), (301, 4)])
def test_chunks_over_pages(
    ops: OpSet, dtype: mx.Dtype, window: int | None, bits: int | None
) -> None:
    heads, kv_heads, dim = SHAPES[0]
    pages = -(-KEYS // PAGE)
    q = normal((QUERIES, heads, dim), dtype, seed=1)
    k, v = (stored((pages, kv_heads, PAGE, dim), dtype, bits, seed) for seed in (2, 3))
    table = np.random.default_rng(5).permutation(pages).tolist()

    def attend(edges: list[int]) -> mx.array:
        """Compute all chunks in one call, as sequences with the same pages."""
        chunks = [(table, OFFSET + start, OFFSET + stop) for start, stop in pairwise(edges)]
        where = PageTable.of(chunks, num_pages=pages, page_size=PAGE)
        return ops.paged_attention(q, k, v, where, window=window, phase="prefill")

    whole = attend([0, QUERIES])
    for seed in (6, 7):
        assert mx.array_equal(attend(cuts(seed)), whole)


@pytest.mark.parametrize("phase", ["decode", None])
def test_draft_tokens(ops: OpSet, dtype: mx.Dtype, phase: Phase | None) -> None:
    """Several tokens of one text are decoded at once, each as a sequence of its own."""
    heads, kv_heads, dim = SHAPES[0]
    pages = -(-KEYS // PAGE)
    q = normal((6, heads, dim), dtype, seed=1)
    k, v = (normal((pages, kv_heads, PAGE, dim), dtype, seed=seed) for seed in (2, 3))

    def attend(first: int, last: int) -> mx.array:
        chunks = [(range(pages), at, at + 1) for at in range(KEYS - 7 + first, KEYS - 7 + last)]
        where = PageTable.of(chunks, num_pages=pages, page_size=PAGE)
        return ops.paged_attention(q[first:last], k, v, where, phase=phase)

    together = attend(0, 6)
    for i in range(6):
        assert mx.array_equal(together[i : i + 1], attend(i, i + 1))
