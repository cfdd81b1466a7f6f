from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import OpSet, PageTable, QuantizationMode, Weight, quantize
from tinyllm_ops.testing import assert_close, exact, normal, oracle, page_table

# (queries, keys) of each sequence: a decode step, a first chunk, a later chunk, no queries, a
# decode step, and an empty sequence.
SEQUENCES = [(1, 1), (5, 5), (3, 20), (0, 7), (1, 33), (0, 0)]


def inputs(
    table: PageTable, dtype: mx.Dtype, heads: tuple[int, int] = (4, 2), dim: int = 32
) -> tuple[mx.array, mx.array, mx.array]:
    q = normal((table.count, heads[0], dim), dtype, seed=1)
    pages = (table.num_pages, heads[1], table.page_size, dim)
    k, v = (normal(pages, dtype, seed=seed) for seed in (2, 3))
    return q, k, v


def expected(
    q: mx.array,
    k: Weight,
    v: Weight,
    table: PageTable,
    scale: float | None = None,
    window: int | None = None,
) -> np.ndarray:
    numbers = (table.block_tables, table.cu_seqlens_q, table.seq_lens)
    return oracle.paged_attention(exact(q), exact(k), exact(v), *numbers, scale, window)


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("window", [None, 1, 6, 100])
def test_each_sequence_sees_its_own_keys(
    ops: OpSet, dtype: mx.Dtype, page: int, window: int | None
) -> None:
    table = page_table(SEQUENCES, page, seed=0)
    q, k, v = inputs(table, dtype)
    out = ops.paged_attention(q, k, v, table, window=window)
    assert (out.shape, out.dtype) == (q.shape, dtype)
    assert_close(out, expected(q, k, v, table, window=window))


@pytest.mark.parametrize("heads", [(1, 1), (14, 2), (6, 6)])
def test_heads_share_keys_and_the_scale_is_the_callers(
    ops: OpSet, dtype: mx.Dtype, heads: tuple[int, int]
) -> None:
    table = page_table(SEQUENCES, 4, seed=1)
    q, k, v = inputs(table, dtype, heads)
    out = ops.paged_attention(q, k, v, table, 0.3)
    assert_close(out, expected(q, k, v, table, 0.3))


@pytest.mark.parametrize(("mode", "bits"), [("affine", 8), ("affine", 4), ("mxfp8", 8)])
@pytest.mark.parametrize("window", [None, 6])
def test_pages_may_be_packed(
    ops: OpSet, dtype: mx.Dtype, mode: QuantizationMode, bits: int, window: int | None
) -> None:
    table = page_table(SEQUENCES, 8, seed=2)
    q, *dense = inputs(table, dtype)
    k, v = (quantize(x, 32, bits, mode) for x in dense)
    out = ops.paged_attention(q, k, v, table, window=window)
    assert_close(out, expected(q, k, v, table, window=window))


def test_sequences_may_share_pages(ops: OpSet) -> None:
    # The third page of each sequence is not read.
    chunks = [([2, 0, -1], 5, 7), ([2, 1, 99], 7, 8)]
    table = PageTable.of(chunks, num_pages=3, page_size=4)
    q, k, v = inputs(table, mx.float32)
    assert_close(ops.paged_attention(q, k, v, table), expected(q, k, v, table))


def test_tokens_of_one_text_as_sequences_of_one_query_are_as_one_chunk(
    ops: OpSet, dtype: mx.Dtype
) -> None:
    chunk = page_table([(3, 20)], 8, seed=11)
    pages = chunk.block_tables[0]
    decoded = PageTable.of(
        [(pages, at, at + 1) for at in (17, 18, 19)], num_pages=chunk.num_pages, page_size=8
    )
    q, k, v = inputs(chunk, dtype)
    for window in (None, 5):
        out = ops.paged_attention(q, k, v, decoded, window=window, phase="decode")
        assert_close(out, expected(q, k, v, chunk, window=window))


@pytest.mark.parametrize("sequences", [[], [(0, 3)], [(0, 0), (0, 9)]], ids=str)
def test_no_tokens_give_an_empty_result(ops: OpSet, sequences: list[tuple[int, int]]) -> None:
    table = page_table(sequences, 4, seed=0)
    q, k, v = inputs(table, mx.float32)
    assert ops.paged_attention(q, k, v, table).shape == (0, 4, 32)


Q, KV = mx.zeros((3, 4, 8)), mx.zeros((5, 2, 4, 8))
TABLE = PageTable.of([([0], 0, 1), ([1], 0, 2)], num_pages=5, page_size=4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": Q[0]}, r"q: expected axes T H D, got shape \(4, 8\)"),
        ({"q": Q[:2]}, r"q: expected 3 tokens, as the table has, got 2"),
        ({"q": Q.astype(mx.int32)}, r"q: expected float32, float16 or bfloat16, got .*int32"),
        ({"k": KV[0]}, r"k: expected axes P Hkv page D, got shape \(2, 4, 8\)"),
        ({"k": KV[:4], "v": KV[:4]}, r"k: expected 5 pages of 4 tokens, .*, got shape \(4, 2, 4"),
        ({"k": KV[:, :, :2]}, r"k: expected 5 pages of 4 tokens, .*, got shape \(5, 2, 2, 8\)"),
        ({"k": KV[..., :4]}, r"k: expected shape \(5, 2, 4, 8\), got \(5, 2, 4, 4\)"),
        ({"v": KV[:4]}, r"v: expected shape \(5, 2, 4, 8\), got \(4, 2, 4, 8\)"),
        ({"q": Q[:, :3]}, r"q: expected a multiple of 2 key/value heads, got 3 heads"),
        ({"k": KV[:, :0], "v": KV[:, :0]}, r"q: expected a multiple of 0 key/value heads, got 4"),
        ({"k": KV.astype(mx.float16)}, r"k: expected dtype .*float32, got .*float16"),
        ({"v": KV.astype(mx.float16)}, r"v: expected dtype .*float32, got .*float16"),
        ({"window": 0}, r"window: expected 1 to 2\^31 - 1 keys, or None, got 0"),
        ({"window": 1 << 31}, r"window: expected 1 to 2\^31 - 1 keys, or None, got 2147483648"),
    ],
)
def test_refuses_arrays_that_do_not_fit_the_table(
    ops: OpSet, unchecked: None, change: dict[str, Any], words: str
) -> None:
    fitting = {"q": Q, "k": KV, "v": KV, "page_table": TABLE}
    ops.paged_attention(**fitting)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=words):
        ops.paged_attention(**fitting | change)  # type: ignore[arg-type]
