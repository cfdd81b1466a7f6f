"""Attention over pages: decode steps, chunks of prompts, and both in one call."""

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import MLX, OpSet, PageTable, Phase, Weight, quantize
from tinyllm_ops.testing import assert_close, exact, normal, oracle, page_table

# Head dim and dtype. Other tests cover (64, float32).
FORMATS = [(80, mx.float16), (96, mx.float32), (128, mx.bfloat16), (256, mx.float32)]
EDGES = [1, 23, 31, 32, 33, 77, 127, 129, 1023, 1024, 1025]
# Queries and keys: decode steps, verified draft tokens, prompts, chunks, and no query.
SEQUENCES = [(1, 1025), (1, 1), (2, 129), (33, 33), (23, 77), (0, 9), (1, 256), (31, 32), (1, 257)]


def inputs(
    table: PageTable,
    dim: int = 64,
    dtype: mx.Dtype = mx.float32,
    heads: tuple[int, int] = (4, 2),
) -> tuple[mx.array, mx.array, mx.array]:
    q = normal((table.count, heads[0], dim), dtype, seed=1)
    shape = (table.num_pages, heads[1], table.page_size, dim)
    k, v = (normal(shape, dtype, seed=seed) for seed in (2, 3))
    return q, k, v


def check(
    metal: OpSet,
    q: mx.array,
    k: Weight,
    v: Weight,
    table: PageTable,
    window: int | None = None,
    phase: Phase | None = None,
) -> mx.array:
    y = metal.paged_attention(q, k, v, table, window=window, phase=phase)
    assert (y.shape, y.dtype) == (q.shape, q.dtype)
    arrays = (table.arrays.block_tables, table.arrays.cu_seqlens_q, table.arrays.seq_lens)
    numbers = (np.array(x) for x in arrays)
    expected = oracle.paged_attention(exact(q), exact(k), exact(v), *numbers, None, window)  # type: ignore[arg-type, call-arg]
    assert_close(y, expected)
    return y


@pytest.mark.parametrize("page", [1, 16, 48])
def test_each_sequence_sees_its_own_keys(metal: OpSet, page: int) -> None:
    table = page_table(SEQUENCES, page, seed=0)
    check(metal, *inputs(table), table)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("queries", [1, 2])
def test_any_number_of_keys(metal: OpSet, queries: int, packed: bool) -> None:
    table = page_table([(queries, max(queries, keys)) for keys in EDGES], 16, seed=8)
    q, k, v = inputs(table, dtype=mx.bfloat16)
    check(metal, q, *((quantize(k, 32, 8), quantize(v, 64, 4)) if packed else (k, v)), table)  # type: ignore[call-arg]


def test_chunks_of_any_length(metal: OpSet) -> None:
    table = page_table([(length, length) for length in EDGES[1:8]], 16, seed=9)
    check(metal, *inputs(table, heads=(1, 1)), table)


@pytest.mark.parametrize("length", EDGES[8:])
def test_long_chunks_behind_a_window(metal: OpSet, length: int) -> None:
    table = page_table([(length, length)], 16, seed=9)
    check(metal, *inputs(table, heads=(1, 1)), table, window=7)


@pytest.mark.parametrize(("dim", "dtype"), FORMATS)
def test_pages_of_each_format(metal: OpSet, dim: int, dtype: mx.Dtype) -> None:
    table = page_table([(1, 257), (23, 77), (0, 3), (33, 33)], 16, seed=0)
    check(metal, *inputs(table, dim, dtype), table)


@pytest.mark.parametrize("window", [1, 40, 300])
def test_a_window_hides_what_is_older(metal: OpSet, window: int) -> None:
    table = page_table(SEQUENCES, 16, seed=0)
    check(metal, *inputs(table), table, window)


@pytest.mark.parametrize(
    "sequences",
    [[(1, 40)], [(5, 40)], [(2, 2), (1, 3)], [(0, 3), (2, 9)], [(1, 3), (3, 5)] * 20],
    ids=["a token", "a chunk", "few", "no query", "more than lanes"],
)
def test_few_sequences_or_many(metal: OpSet, sequences: list[tuple[int, int]]) -> None:
    table = page_table(sequences, 8, seed=1)
    check(metal, *inputs(table), table)


def test_heads_of_a_group_share_a_page(metal: OpSet) -> None:
    table = page_table([(1, 300), (5, 40)], 8, seed=2)
    check(metal, *inputs(table, heads=(9, 1)), table)


def alone(table: PageTable, row: int) -> tuple[slice, PageTable]:
    """Return the tokens of sequence `row` as a slice, and a page table of this sequence alone."""
    start, end = table.cu_seqlens_q[row : row + 2]
    length = table.seq_lens[row]
    chunk = (table.block_tables[row], length - (end - start), length)
    sizes = {"num_pages": table.num_pages, "page_size": table.page_size}
    return slice(start, end), PageTable.of([chunk], **sizes)


def test_a_sequence_has_the_same_bits_alone_and_in_any_batch(metal: OpSet) -> None:
    table = page_table([(1, 600), (1, 1), (2, 129), (0, 9), (33, 33), (1, 257)], 16, seed=3)
    q, k, v = inputs(table)
    phases: tuple[Phase | None, ...] = (None, "prefill", "decode")
    for phase in phases:
        together = metal.paged_attention(q, k, v, table, phase=phase)
        for row in range(len(table.seq_lens)):
            tokens, own = alone(table, row)
            y = metal.paged_attention(q[tokens], k, v, own, phase=phase)
            assert mx.array_equal(y, together[tokens]).item()


@pytest.mark.parametrize("packed", [False, True])
def test_a_prefill_chunk_of_one_token_has_the_bits_of_a_longer_chunk(
    metal: OpSet, packed: bool
) -> None:
    sizes = {"num_pages": 12, "page_size": 8}
    pages, other = [7, 2, 9, 0, 11, 4, 5, 1, 3], [10, 6]
    whole = PageTable.of([(pages, 30, 70)], **sizes)
    q, *dense = inputs(whole, dtype=mx.bfloat16, heads=(6, 2))
    k, v = (quantize(x, 32, 4) for x in dense) if packed else dense
    for window in (None, 9):
        long = metal.paged_attention(q, k, v, whole, window=window, phase="prefill")
        for start, end in ((0, 1), (17, 18), (18, 39), (39, 40)):
            chunk = PageTable.of([(other, 2, 9), (pages, 30 + start, 30 + end)], **sizes)
            own = mx.concatenate([q[:7], q[start:end]])
            y = metal.paged_attention(own, k, v, chunk, window=window, phase="prefill")
            assert mx.array_equal(y[7:], long[start:end]).item()


def test_every_query_of_the_decode_phase_is_a_decode_step(metal: OpSet) -> None:
    table = page_table([(3, 300), (1, 9), (0, 4), (2, 2)], 8, seed=4)
    q, k, v = inputs(table)
    y = check(metal, q, k, v, table, phase="decode")
    last = PageTable.of(
        [(table.block_tables[0], 299, 300)], num_pages=table.num_pages, page_size=table.page_size
    )
    assert mx.array_equal(y[2:3], metal.paged_attention(q[2:3], k, v, last)).item()


@pytest.mark.parametrize("window", [None, 20])
def test_prefill_of_one_token_sequences(metal: OpSet, window: int | None) -> None:
    table = page_table([(1, 33), (4, 9), (1, 1), (0, 3), (1, 40)] * 8, 8, seed=5)
    check(metal, *inputs(table), table, window, phase="prefill")


@pytest.mark.parametrize("length", [1, 20])
def test_pages_equal_a_dense_cache(metal: OpSet, length: int) -> None:
    table = page_table([(length, 400)], 16, seed=4)
    q, k, v = inputs(table)
    pages = mx.array(table.block_tables[0])  # type: ignore[arg-type]
    rows = [x[pages].swapaxes(0, 1).reshape(2, 400, 64) for x in (k, v)]
    dense = metal.attention(q.swapaxes(0, 1), *rows, None, "causal").swapaxes(0, 1)  # type: ignore[arg-type, call-arg]
    assert mx.array_equal(metal.paged_attention(q, k, v, table), dense).item()


@pytest.mark.parametrize("phase", [None, "prefill", "decode"])
def test_sequences_may_share_pages(metal: OpSet, phase: Phase | None) -> None:
    table = PageTable.of([([2, 0], 5, 7), ([2, 1], 7, 8)], num_pages=3, page_size=4)
    check(metal, *inputs(table), table, phase=phase)


def test_views_are_read_in_place(metal: OpSet) -> None:
    table = page_table([(1, 30), (20, 41)], 8, seed=5)
    wide = inputs(table, dim=128)
    for columns in (slice(64, None), slice(None, None, 2)):
        check(metal, *(x[..., columns] for x in wide), table)  # type: ignore[arg-type, call-arg]


def test_keys_past_the_end_of_a_sequence_are_not_read(metal: OpSet) -> None:
    table = page_table([(1, 13), (20, 21)], 8, seed=6)
    q, k, v = inputs(table)
    for x in (k, v):
        x[table.block_tables[0][1], :, 5:] = mx.nan
        x[table.block_tables[1][2], :, 5:] = mx.nan
    assert mx.isfinite(metal.paged_attention(q, k, v, table)).all().item()


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
    q, k, v = inputs(table, dim, dtype)
    for window in (None, 40):
        check(metal, q, quantize(k, *of_keys), quantize(v, *of_values), table, window)


def test_packed_pages_equal_a_packed_cache(metal: OpSet) -> None:
    table = page_table([(1, 400)], 16, seed=4)
    q, *dense = inputs(table)
    k, v = (quantize(x, 64, 4) for x in dense)
    rows = [
        x.map(lambda part: part[mx.array(table.block_tables[0])].swapaxes(0, 1).flatten(1, 2))  # type: ignore[arg-type]
        for x in (k, v)
    ]
    dense_result = metal.attention(q.swapaxes(0, 1), *(x[:, :400] for x in rows)).swapaxes(0, 1)  # type: ignore[arg-type]
    assert mx.array_equal(metal.paged_attention(q, k, v, table), dense_result).item()


def test_mlx_computes_pages_of_other_formats_and_head_dims(metal: OpSet) -> None:
    table = page_table([(1, 13), (5, 21)], 8, seed=7)
    q, k, v = inputs(table)
    narrow = [x[..., :48] for x in (q, k, v)]
    floating = [quantize(x, 32, 4, "mxfp4") for x in (k, v)]
    for tensors in ((q, *floating), (q, k, quantize(v, 64, 8)), narrow):
        y = metal.paged_attention(*tensors, table)  # type: ignore[arg-type, call-arg]
        assert mx.array_equal(y, MLX.paged_attention(*tensors, table)).item()  # type: ignore[arg-type, call-arg]
