"""The paged cache: attention over many sequences, writes, copies of pages, and error messages."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_layers import Batch, PagedCache
from tinyllm_layers.testing import oracle, packed, random_attention, random_pages
from tinyllm_ops import OpSet, PageTable, Phase, QuantizedTensor
from tinyllm_ops.testing import assert_close, exact, normal, page_table

# (queries, keys) of each request: a first chunk, a later chunk, one token, no query.
CHUNKS = [(5, 5), (3, 20), (1, 9), (0, 7)]
DECODED = [(1, 1), (1, 20), (1, 33)]
PAGE = 8
RandomQKV = Callable[..., tuple[mx.array, mx.array, mx.array]]


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("kind", [{"biased": "qkvo"}, {"normed": True}], ids=str)
@pytest.mark.parametrize(
    ("requests", "phase"),
    [(CHUNKS, "prefill"), (DECODED, "decode"), (DECODED, "prefill"), (DECODED[:1], "prefill")],
    ids=["chunks", "decoded", "chunks of one token", "one token"],
)
def test_attention_over_the_pages_of_many_sequences(
    ops: OpSet,
    dtype: mx.Dtype,
    requests: list[tuple[int, int]],
    phase: Phase,
    kind: dict[str, Any],
    window: int | None,
) -> None:
    layer = random_attention(48, 6, 2, 10, dtype=dtype, ops=ops, **kind)
    table = page_table(requests, PAGE, seed=2)
    batch = Batch.paged(table, phase)
    x, residual = (normal((batch.rows, batch.length, 48), dtype, seed=seed) for seed in (1, 2))
    cache = random_pages(layer, table.num_pages, PAGE, dtype=dtype, window=window)
    expected, *stored = oracle.paged_attention(
        exact(x), layer, table, exact(cache.keys), exact(cache.values), window
    )
    y = layer(x, batch, cache, residual=residual)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    assert_close(y, expected + exact(residual))
    for pages, after in zip((cache.keys, cache.values), stored, strict=True):
        assert_close(pages, after)  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [8, 4])
def test_new_keys_are_packed_in_the_format_of_the_pages(
    ops: OpSet, dtype: mx.Dtype, bits: int
) -> None:
    layer = random_attention(48, 4, 2, 32, dtype=dtype, ops=ops)
    table = page_table(CHUNKS, PAGE, seed=5)
    batch = Batch.paged(table, "prefill")
    x = normal((1, table.count, 48), dtype, seed=1)
    cache = random_pages(layer, table.num_pages, PAGE, dtype=dtype, pack=packed(bits))
    before = [exact(pages) for pages in (cache.keys, cache.values)]
    y = layer(x, batch, cache)
    q, k, v = layer.project(x, batch)
    stored = [cache.keys, cache.values]
    for pages, old, heads in zip(stored, before, (k, v), strict=True):
        codes = exact(ops.quantize(heads, 32, bits))
        assert np.array_equal(exact(pages), oracle.written(old, codes, table))
    pages = [exact(w) for w in stored]  # type: ignore[assignment]
    assert_close(y, oracle.attend_pages(exact(q), layer, table, *pages))  # type: ignore[misc]


def test_tokens_of_one_text_see_each_other(ops: OpSet, dtype: mx.Dtype) -> None:
    """Three tokens of one text, passed as three sequences, equal one chunk of three tokens."""
    layer = random_attention(48, 4, 2, 16, dtype=dtype, ops=ops)
    chunk = page_table([(3, 20)], PAGE, seed=11)
    ((pages,), size) = chunk.block_tables, chunk.num_pages
    drafts = PageTable.of(
        [(pages, at, at + 1) for at in (17, 18, 19)], num_pages=size, page_size=PAGE
    )
    x = normal((3, 1, 48), dtype, seed=1)
    cache = random_pages(layer, size, PAGE, dtype=dtype)
    before = [exact(cache.keys), exact(cache.values)]
    expected, *_ = oracle.paged_attention(exact(x).swapaxes(0, 1), layer, chunk, *before)  # type: ignore[arg-type]
    y = layer(x, Batch.paged(drafts, "decode"), cache)
    assert_close(y.swapaxes(0, 1), expected)


def test_arrays_of_the_caller_keep_their_numbers(ops: OpSet, random_qkv: RandomQKV) -> None:
    keys, values = mx.ones((6, 2, 4, 16)), mx.ones((6, 2, 4, 16))
    keys[2] = 2
    before = exact(keys)
    batch = Batch.paged(PageTable.of([([2], 0, 3)], num_pages=6, page_size=4), "prefill")
    written, copied = PagedCache(keys, values), PagedCache(keys, values)
    written.attend(*random_qkv((1, 4, 2, 3, 16)), batch, 1.0, ops)
    copied.copy([(2, 5)])
    assert np.array_equal(exact(keys), before)
    assert (values == 1).all().item()
    for cache in (written, copied):
        assert not np.array_equal(exact(cache.keys), before)


def test_no_tokens_change_nothing(ops: OpSet) -> None:
    layer = random_attention(48, 4, 2, 16, ops=ops)
    cache = random_pages(layer, 4, PAGE)
    keys = exact(cache.keys)
    table = page_table([(0, 3)], PAGE, seed=15)
    for phase, shape in (("prefill", (1, 0, 48)), ("decode", (0, 1, 48))):
        y = layer(mx.zeros(shape), Batch.paged(table, phase), cache)  # type: ignore[arg-type]
        assert y.shape == shape
        assert np.array_equal(exact(cache.keys), keys)


@pytest.mark.parametrize("bits", [None, 8])
def test_copies_pages(random_qkv: RandomQKV, bits: int | None) -> None:
    layer = random_attention()
    cache = random_pages(layer, 6, 4, pack=packed(bits))
    other = cache.fork()
    before = [exact(pages) for pages in (cache.keys, cache.values)]
    pairs = [(0, 3), (3, 1), (4, 4), (0, 5)]  # page 3 is read before it is written
    cache.copy(pairs)
    for pages, old in zip((cache.keys, cache.values), before, strict=True):
        assert isinstance(pages, mx.array if bits is None else QuantizedTensor)
        expected = old.copy()
        for source, target in pairs:
            expected[target] = old[source]
        assert np.array_equal(exact(pages), expected)
    assert np.array_equal(exact(other.keys), before[0])
    arrays = cache.arrays
    cache.copy([])
    assert list(map(id, cache.arrays)) == list(map(id, arrays))


@pytest.mark.parametrize("pair", [(0, 6), (6, 0), (-1, 0), (0, -1)])
def test_refuses_to_copy_a_page_that_does_not_exist(pair: tuple[int, int]) -> None:
    cache = PagedCache.empty((6, 2, 4, 16), mx.float32)
    with pytest.raises(ValueError, match=r"pairs: expected pages from 0 to 5, got \[\(1, 2\), "):
        cache.copy([(1, 2), pair])


@pytest.mark.parametrize(
    ("bits", "page_bytes"), [(None, 2 * 2 * 4 * 64 * 2), (8, 2 * 2 * 4 * (64 + 2 * 2 * 2))]
)
def test_bytes_are_those_of_all_pages(bits: int | None, page_bytes: int) -> None:
    cache = PagedCache.empty((6, 2, 4, 64), mx.float16, bits=bits, group_size=32)
    assert cache.nbytes == 6 * page_bytes
    assert sum(array.nbytes for array in cache.arrays) == cache.nbytes
    assert (cache.num_pages, cache.page_size) == (6, 4)
    assert not any(array.any().item() for array in cache.arrays)


X = mx.zeros((1, 3, 48))


@pytest.mark.parametrize("window", [0, -3])
def test_refuses_a_window_without_the_token_itself(window: int) -> None:
    layer = random_attention(48, 4, 2, 16)
    cache = random_pages(layer, 4, PAGE, window=window)
    batch = Batch.paged(page_table([(3, 3)], PAGE, seed=1), "prefill")
    with pytest.raises(ValueError, match=r"window: expected 1 to 2\^31 - 1 keys, or None, got"):
        layer(X, batch, cache)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((5, 2, PAGE, 16), r"pages: expected 4 pages of 8 tokens, as the table has, got shape"),
        ((3, 2, PAGE, 16), r"pages: expected 4 pages of 8 tokens, as the table has, got shape"),
        ((4, 2, 16, 16), r"pages: expected 4 pages of 8 tokens, as the table has, got shape"),
        ((4, 1, PAGE, 16), r"rows: expected shape \(3, 1, 16\), got \(3, 2, 16\)"),
        ((4, 2, PAGE, 8), r"rows: expected shape \(3, 2, 8\), got \(3, 2, 16\)"),
    ],
)
def test_refuses_pages_of_another_shape(ops: OpSet, shape: tuple[int, ...], words: str) -> None:
    layer = random_attention(48, 4, 2, 16, ops=ops)
    cache = PagedCache.empty(shape, mx.float32)  # type: ignore[arg-type]
    table = page_table([(3, 3)], PAGE, seed=1)
    assert table.num_pages == 4
    with pytest.raises(ValueError, match=words):
        layer(X, Batch.paged(table, "prefill"), cache)
    assert not cache.keys.any().item()


def test_refuses_pages_of_another_dtype_or_format(ops: OpSet) -> None:
    layer = random_attention(64, 4, 2, 32, ops=ops)
    batch = Batch.paged(page_table([(3, 3)], PAGE, seed=1), "prefill")
    shape, x = (4, 2, PAGE, 32), mx.ones((1, 3, 64))
    dense, codes = (
        PagedCache.empty(shape, mx.float16, bits=bits, group_size=32) for bits in (None, 8)
    )
    with pytest.raises(ValueError, match=r"rows: expected dtype .*float16, got .*float32"):
        layer(x, batch, dense)
    with pytest.raises(ValueError, match=r"rows\.scales: expected dtype .*float16, got .*float32"):
        layer(x, batch, codes)
    for cache in (dense, codes):
        assert not any(array.any().item() for array in cache.arrays)


def test_refuses_a_batch_without_a_page_table(ops: OpSet) -> None:
    layer = random_attention(48, 4, 2, 16, ops=ops)
    cache = random_pages(layer, 4, PAGE)
    words = "batch: expected a page table for a paged cache, got None"
    for batch in (Batch.at(0, 1, 3), None):
        with pytest.raises(ValueError, match=words):
            layer(X, batch, cache)


@pytest.mark.parametrize(
    ("pages", "words"),
    [([4], "block_tables: expected pages"), ([2**31], "block_tables"), ([-1], "block_tables")],
)
def test_a_table_refuses_a_page_that_does_not_exist(pages: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PageTable.of([(pages, 0, 3)], num_pages=4, page_size=PAGE)


@pytest.mark.parametrize(("phase", "shape"), [("prefill", (3, 1, 48)), ("decode", (1, 3, 48))])
def test_refuses_tokens_laid_out_for_the_other_phase(
    ops: OpSet, phase: Phase, shape: tuple[int, ...]
) -> None:
    layer = random_attention(48, 4, 2, 16, ops=ops)
    cache = random_pages(layer, 4, PAGE)
    before = exact(cache.keys)
    batch = Batch.paged(page_table([(3, 3)], PAGE, seed=1), phase)
    with pytest.raises(ValueError, match="expected"):
        layer(mx.zeros(shape), batch, cache)
    assert np.array_equal(exact(cache.keys), before)
