"""A query's result is the same to the last bit, however its prompt is cut.

A query that is alone in its request is computed in another way: chunks have two or more.
"""

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import OpSet, Weight, quantize
from tinyllm_ops.testing import PageTable, normal

pytestmark = pytest.mark.exhaustive

# Queries enough for several blocks of them, and keys for two spans.
QUERIES, KEYS, PAGE = 230, 2170, 16
OFFSET = KEYS - QUERIES
# H, Hkv, D
SHAPES = [(6, 2, 64), (1, 1, 96), (9, 1, 32)]


def cuts(seed: int) -> list[int]:
    """Where chunks begin and end."""
    rng = np.random.default_rng(seed)
    edges = [0]
    while QUERIES - edges[-1] > 200:
        edges.append(edges[-1] + int(rng.choice([2, 3, 4, 7, 33])))
    while QUERIES - edges[-1] > 20:
        edges.append(edges[-1] + int(rng.integers(2, 19)))
    return [*edges, QUERIES]


def stored(shape: tuple[int, ...], dtype: mx.Dtype, bits: int | None, seed: int) -> Weight:
    """Keys or values, packed if `bits` says so."""
    x = normal(shape, dtype, seed=seed)
    return x if bits is None else quantize(x, 32, bits)


@pytest.mark.parametrize(
    ("shape", "bits"),
    [(SHAPES[0], 8), (SHAPES[0], 4), *((shape, None) for shape in SHAPES)],
    ids=str,
)
def test_of_a_dense_cache(
    ops: OpSet, dtype: mx.Dtype, shape: tuple[int, int, int], bits: int | None
) -> None:
    heads, kv_heads, dim = shape
    q = normal((heads, QUERIES, dim), dtype, seed=1)
    k, v = (stored((kv_heads, KEYS, dim), dtype, bits, seed) for seed in (2, 3))

    def attend(first: int, last: int) -> mx.array:
        seen = (slice(None), slice(None, OFFSET + last))
        return ops.attention(q[:, first:last], k[seen], v[seen], None, "causal")

    whole = attend(0, QUERIES)
    parts = [attend(*edges) for edges in pairwise(cuts(seed=4))]
    assert mx.array_equal(mx.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize(("window", "bits"), [(None, None), (None, 8), (301, 4)])
def test_of_pages(ops: OpSet, dtype: mx.Dtype, window: int | None, bits: int | None) -> None:
    heads, kv_heads, dim = SHAPES[0]
    pages = -(-KEYS // PAGE)
    q = normal((QUERIES, heads, dim), dtype, seed=1)
    k, v = (stored((pages, kv_heads, PAGE, dim), dtype, bits, seed) for seed in (2, 3))
    table = mx.array(np.random.default_rng(5).permutation(pages)[None].astype(np.int32))

    def attend(edges: list[int]) -> mx.array:
        """All chunks in one call, as requests that share their pages."""
        where = PageTable(
            mx.repeat(table, len(edges) - 1, axis=0),
            mx.array(edges, mx.int32),
            mx.array(edges[1:], mx.int32) + OFFSET,
            pages,
        )
        return ops.paged_attention(q, k, v, *where.arrays, window=window)

    whole = attend([0, QUERIES])
    for seed in (6, 7):
        assert mx.array_equal(attend(cuts(seed)), whole)


def test_of_tokens_that_are_decoded(ops: OpSet, dtype: mx.Dtype) -> None:
    """Several tokens of one text at once, as speculation has them, each a request of its own."""
    heads, kv_heads, dim = SHAPES[0]
    pages = -(-KEYS // PAGE)
    q = normal((6, heads, dim), dtype, seed=1)
    k, v = (normal((pages, kv_heads, PAGE, dim), dtype, seed=seed) for seed in (2, 3))
    table = mx.arange(pages, dtype=mx.int32)[None]
    lengths = mx.arange(KEYS - 6, KEYS, dtype=mx.int32)
    starts = mx.arange(7, dtype=mx.int32)
    together = ops.paged_attention(q, k, v, mx.repeat(table, 6, axis=0), starts, lengths)
    for i in range(6):
        alone = ops.paged_attention(q[i : i + 1], k, v, table, starts[:2], lengths[i : i + 1])
        assert mx.array_equal(together[i : i + 1], alone)
