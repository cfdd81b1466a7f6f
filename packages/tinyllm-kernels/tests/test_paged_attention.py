"""Pages, read in place: prompts and decoded tokens of many requests in one call."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_kernels import opset
from tinyllm_ops import OpSet, PageTable, QuantizationMode, Weight, quantize
from tinyllm_ops.testing import (
    TOLERANCE,
    assert_close,
    exact,
    normal,
    oracle,
    page_table,
)

# (queries, keys) of each request: decode steps, several tokens at once, a prompt, a chunk of a
# prompt, and no query.
REQUESTS = [(1, 700), (1, 1), (4, 130), (70, 70), (33, 290), (0, 9), (1, 256), (1, 257)]


def inputs(
    table: PageTable, page: int, dtype: mx.Dtype, heads: tuple[int, int] = (4, 2), dim: int = 64
) -> tuple[mx.array, mx.array, mx.array]:
    q = normal((table.count, heads[0], dim), dtype, seed=1)
    k, v = (normal((table.num_pages, heads[1], page, dim), dtype, seed=seed) for seed in (2, 3))
    return q, k, v


def expected(
    q: mx.array, k: Weight, v: Weight, table: PageTable, window: int | None = None
) -> np.ndarray:
    arrays = table.arrays
    where = map(np.array, (arrays.block_tables, arrays.cu_seqlens_q, arrays.seq_lens))
    return oracle.paged_attention(exact(q), exact(k), exact(v), *where, None, window)  # type: ignore[arg-type, call-arg]


@pytest.mark.parametrize("page", [1, 16, 48])
@pytest.mark.parametrize("window", [None, 1, 40, 300])
def test_each_request_sees_its_own_keys(
    ops: OpSet, dtype: mx.Dtype, page: int, window: int | None
) -> None:
    table = page_table(REQUESTS, page, seed=0)
    q, k, v = inputs(table, page, dtype)
    y = ops.paged_attention(q, k, v, table, window=window)
    assert (y.shape, y.dtype) == (q.shape, dtype)
    assert_close(y, expected(q, k, v, table, window))


@given(
    requests=st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 40)).map(lambda x: (x[0], x[0] + x[1])),
        max_size=6,
    ),
    page=st.integers(1, 20),
    heads=st.sampled_from([(1, 1), (14, 2), (6, 6)]),
    dim=st.sampled_from([5, 32, 80, 128]),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=60)
def test_takes_any_requests(
    requests: list[tuple[int, int]],
    page: int,
    heads: tuple[int, int],
    dim: int,
    dtype: mx.Dtype,
) -> None:
    table = page_table(requests, page, seed=1)
    q, k, v = inputs(table, page, dtype, heads, dim)
    assert_close(opset("cpu").paged_attention(q, k, v, table), expected(q, k, v, table))


@pytest.mark.parametrize(("mode", "bits"), [("affine", 8), ("affine", 4), ("mxfp8", 8)])
def test_pages_may_be_packed(
    ops: OpSet, dtype: mx.Dtype, mode: QuantizationMode, bits: int
) -> None:
    table = page_table(REQUESTS, 16, seed=2)
    q, *dense = inputs(table, 16, dtype)
    k, v = (quantize(x, 32, bits, mode) for x in dense)
    assert_close(ops.paged_attention(q, k, v, table), expected(q, k, v, table))


def test_a_request_is_the_same_alone_and_in_any_batch(ops: OpSet, dtype: mx.Dtype) -> None:
    table = page_table(REQUESTS, 16, seed=3)
    q, k, v = inputs(table, 16, dtype)
    together = ops.paged_attention(q, k, v, table)
    starts = table.cu_seqlens_q
    for r, (queries, keys) in enumerate(REQUESTS):
        chunk = (table.block_tables[r], keys - queries, keys)
        alone = PageTable.of([chunk], num_pages=table.num_pages, page_size=16)
        y = ops.paged_attention(q[starts[r] : starts[r + 1]], k, v, alone)
        assert mx.array_equal(y, together[starts[r] : starts[r + 1]]).item()


def test_pages_equal_a_dense_cache(ops: OpSet, dtype: mx.Dtype) -> None:
    for length, keys in ((1, 400), (50, 400)):
        table = page_table([(length, keys)], 16, seed=4)
        q, k, v = inputs(table, 16, dtype)
        rows = [
            x[mx.array(table.block_tables[0])[:25]].swapaxes(0, 1).reshape(2, 400, 64)  # type: ignore[arg-type]
            for x in (k, v)
        ]
        dense = ops.attention(q.swapaxes(0, 1), *rows, None, "causal").swapaxes(0, 1)  # type: ignore[arg-type, call-arg]
        assert mx.array_equal(ops.paged_attention(q, k, v, table), dense).item()


def test_requests_may_share_pages(ops: OpSet) -> None:
    table = PageTable.of([([2, 0], 5, 7), ([2, 1], 7, 8)], num_pages=3, page_size=4)
    q, k, v = (normal(shape, seed=1) for shape in ((3, 4, 32), (3, 2, 4, 32), (3, 2, 4, 32)))
    assert_close(ops.paged_attention(q, k, v, table), expected(q, k, v, table))


def test_views_are_read_in_place(ops: OpSet, dtype: mx.Dtype) -> None:
    table = page_table([(1, 30), (20, 41)], 8, seed=5)
    q, k, v = inputs(table, 8, dtype, dim=128)
    halves = [x[..., 64:] for x in (q, k, v)]
    y = ops.paged_attention(*halves, table)  # type: ignore[arg-type, call-arg]
    assert_close(y, expected(*halves, table))  # type: ignore[arg-type, call-arg]
    thin = [x[..., ::2] for x in (q, k, v)]
    assert_close(ops.paged_attention(*thin, table), expected(*thin, table))  # type: ignore[arg-type, call-arg]


def test_keys_past_the_end_of_a_request_are_not_read(ops: OpSet) -> None:
    table = page_table([(1, 13), (20, 21)], 8, seed=6)
    q, k, v = inputs(table, 8, mx.float32)
    pages = table.block_tables
    for x in (k, v):
        x[pages[0][1], :, 5:] = mx.nan
        x[pages[1][2], :, 5:] = mx.nan
    assert mx.isfinite(ops.paged_attention(q, k, v, table)).all().item()
