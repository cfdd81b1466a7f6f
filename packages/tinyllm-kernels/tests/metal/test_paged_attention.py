"""Pages, read in place, by kernels that find out themselves whose tokens and keys are whose."""

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import MLX, OpSet, Weight, quantize
from tinyllm_ops.testing import PageTable, assert_close, exact, normal, oracle, page_table

FORMATS = [(80, mx.float16), (96, mx.float32), (128, mx.bfloat16)]  # beside 64, float32
EDGES = [1, 23, 31, 32, 33, 77, 127, 129, 1023, 1024, 1025]
# Queries and keys: decoding far into a text, several tokens at once, prompts, chunks of them,
# nothing to do.
REQUESTS = [(1, 1025), (1, 1), (2, 129), (33, 33), (23, 77), (0, 9), (1, 256), (31, 32), (1, 257)]


def inputs(
    table: PageTable,
    page: int,
    dim: int = 64,
    dtype: mx.Dtype = mx.float32,
    heads: tuple[int, int] = (4, 2),
) -> tuple[mx.array, mx.array, mx.array]:
    tokens = int(table.query_starts[-1].item())
    q = normal((tokens, heads[0], dim), dtype, seed=1)
    k, v = (normal((table.pages, heads[1], page, dim), dtype, seed=seed) for seed in (2, 3))
    return q, k, v


def check(
    metal: OpSet,
    q: mx.array,
    k: Weight,
    v: Weight,
    table: PageTable,
    window: int | None = None,
) -> mx.array:
    y = metal.paged_attention(q, k, v, *table.arrays, window=window)
    assert (y.shape, y.dtype) == (q.shape, q.dtype)
    where = (np.array(x) for x in table.arrays)
    expected = oracle.paged_attention(exact(q), exact(k), exact(v), *where, None, window)
    assert_close(y, expected)
    return y


@pytest.mark.parametrize("page", [1, 16, 48])
def test_each_request_sees_its_own_keys(metal: OpSet, page: int) -> None:
    table = page_table(REQUESTS, page, seed=0)
    check(metal, *inputs(table, page), table)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("queries", [1, 2])
def test_any_number_of_keys(metal: OpSet, queries: int, packed: bool) -> None:
    table = page_table([(queries, max(queries, keys)) for keys in EDGES], 16, seed=8)
    q, k, v = inputs(table, 16, dtype=mx.bfloat16)
    check(metal, q, *((quantize(k, 32, 8), quantize(v, 64, 4)) if packed else (k, v)), table)


def test_chunks_of_any_length(metal: OpSet) -> None:
    table = page_table([(length, length) for length in EDGES[1:8]], 16, seed=9)
    check(metal, *inputs(table, 16, heads=(1, 1)), table)


@pytest.mark.parametrize("length", EDGES[8:])
def test_long_chunks_behind_a_window(metal: OpSet, length: int) -> None:
    table = page_table([(length, length)], 16, seed=9)
    check(metal, *inputs(table, 16, heads=(1, 1)), table, window=7)


@pytest.mark.parametrize(("dim", "dtype"), FORMATS)
def test_pages_of_each_format(metal: OpSet, dim: int, dtype: mx.Dtype) -> None:
    table = page_table([(1, 257), (23, 77), (0, 3), (33, 33)], 16, seed=0)
    check(metal, *inputs(table, 16, dim, dtype), table)


@pytest.mark.parametrize("window", [1, 40, 300])
def test_a_window_hides_what_is_older(metal: OpSet, window: int) -> None:
    table = page_table(REQUESTS, 16, seed=0)
    check(metal, *inputs(table, 16), table, window)


@pytest.mark.parametrize(
    "requests",
    [[(1, 40)], [(5, 40)], [(2, 2), (1, 3)], [(0, 3), (2, 9)], [(1, 3), (3, 5)] * 20],
    ids=["a token", "a chunk", "few", "nothing", "more than lanes"],
)
def test_few_requests_or_many(metal: OpSet, requests: list[tuple[int, int]]) -> None:
    table = page_table(requests, 8, seed=1)
    check(metal, *inputs(table, 8), table)


def test_heads_of_a_group_share_a_page(metal: OpSet) -> None:
    table = page_table([(1, 300), (5, 40)], 8, seed=2)
    check(metal, *inputs(table, 8, heads=(9, 1)), table)


def test_a_request_is_the_same_alone_and_in_any_batch(metal: OpSet) -> None:
    requests = [(1, 600), (1, 1), (2, 129), (0, 9), (33, 33), (1, 257)]
    table = page_table(requests, 16, seed=3)
    q, k, v = inputs(table, 16)
    together = metal.paged_attention(q, k, v, *table.arrays)
    starts = np.array(table.query_starts)
    for r, (queries, _) in enumerate(requests):
        mine = slice(int(starts[r]), int(starts[r + 1]))
        where = (
            table.block_table[r : r + 1],
            mx.array([0, queries], mx.int32),
            table.context_lengths[r : r + 1],
        )
        alone = metal.paged_attention(q[mine], k, v, *where)
        assert mx.array_equal(alone, together[mine]).item()


@pytest.mark.parametrize("length", [1, 20])
def test_pages_give_what_a_dense_cache_gives(metal: OpSet, length: int) -> None:
    table = page_table([(length, 400)], 16, seed=4)
    q, k, v = inputs(table, 16)
    rows = [x[table.block_table[0, :25]].swapaxes(0, 1).reshape(2, 400, 64) for x in (k, v)]
    dense = metal.attention(q.swapaxes(0, 1), *rows, None, "causal").swapaxes(0, 1)
    assert mx.array_equal(metal.paged_attention(q, k, v, *table.arrays), dense).item()


def test_requests_may_share_pages_and_tokens_may_be_nobodys(metal: OpSet) -> None:
    table = PageTable(
        mx.array([[2, 0, -1], [2, 1, 99]], mx.int32),
        mx.array([1, 3, 4], mx.int32),  # token 0 and those from 4 on belong to no request
        mx.array([7, 8], mx.int32),
        3,
    )
    q, k, v = (normal(shape, seed=1) for shape in ((6, 4, 64), (3, 2, 4, 64), (3, 2, 4, 64)))
    y = check(metal, q, k, v, table)
    assert not mx.concatenate([y[:1], y[4:]]).any().item()


def test_views_are_read_where_they_lie(metal: OpSet) -> None:
    table = page_table([(1, 30), (20, 41)], 8, seed=5)
    wide = inputs(table, 8, dim=128)
    for columns in (slice(64, None), slice(None, None, 2)):
        check(metal, *(x[..., columns] for x in wide), table)
    where = (mx.repeat(x, 2, axis=-1)[..., ::2] for x in table.arrays)
    q, k, v = (x[..., :64] for x in wide)
    y = metal.paged_attention(q, k, v, *where)
    assert mx.array_equal(y, metal.paged_attention(q, k, v, *table.arrays)).item()


def test_what_is_past_the_end_of_a_request_is_not_looked_at(metal: OpSet) -> None:
    table = page_table([(1, 13), (20, 21)], 8, seed=6)
    q, k, v = inputs(table, 8)
    pages = np.array(table.block_table)
    for x in (k, v):
        x[int(pages[0, 1]), :, 5:] = mx.nan
        x[int(pages[1, 2]), :, 5:] = mx.nan
    assert mx.isfinite(metal.paged_attention(q, k, v, *table.arrays)).all().item()


@pytest.mark.parametrize(
    ("dim", "dtype", "of_keys", "of_values"),
    [(64, mx.float32, (64, 8), (32, 4)), (128, mx.bfloat16, (64, 4), (128, 8))],
)
def test_packed_pages(
    metal: OpSet,
    dim: int,
    dtype: mx.Dtype,
    of_keys: tuple[int, int],
    of_values: tuple[int, int],
) -> None:
    table = page_table([(1, 257), (23, 77), (0, 3), (1, 1)], 16, seed=0)
    q, k, v = inputs(table, 16, dim, dtype)
    for window in (None, 40):
        check(metal, q, quantize(k, *of_keys), quantize(v, *of_values), table, window)


def test_packed_pages_give_what_a_packed_cache_gives(metal: OpSet) -> None:
    table = page_table([(1, 400)], 16, seed=4)
    q, *dense = inputs(table, 16)
    k, v = (quantize(x, 64, 4) for x in dense)
    rows = [
        x.map(lambda part: part[table.block_table[0, :25]].swapaxes(0, 1).flatten(1, 2))
        for x in (k, v)
    ]
    alone = metal.attention(q.swapaxes(0, 1), *(x[:, :400] for x in rows)).swapaxes(0, 1)
    assert mx.array_equal(metal.paged_attention(q, k, v, *table.arrays), alone).item()


def test_mlx_computes_pages_of_other_formats_and_head_dims(metal: OpSet) -> None:
    table = page_table([(1, 13), (5, 21)], 8, seed=7)
    q, k, v = inputs(table, 8)
    narrow = [x[..., :48] for x in (q, k, v)]
    floating = [quantize(x, 32, 4, "mxfp4") for x in (k, v)]
    for tensors in ((q, *floating), (q, k, quantize(v, 64, 8)), narrow):
        y = metal.paged_attention(*tensors, *table.arrays)
        assert mx.array_equal(y, MLX.paged_attention(*tensors, *table.arrays)).item()
