import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import OpSet, QuantizedTensor, quantize
from tinyllm_ops.testing import PageTable, assert_close, exact, normal, oracle, page_table

# Queries and keys of each request: decoding, a first chunk, a later one, nothing to do.
REQUESTS = [(1, 1), (5, 5), (3, 20), (0, 7), (1, 33), (0, 0)]


def inputs(
    table: PageTable, page: int, dtype: mx.Dtype, heads: tuple[int, int] = (4, 2), dim: int = 32
) -> tuple[mx.array, mx.array, mx.array]:
    tokens = int(table.query_starts[-1].item())
    q = normal((tokens, heads[0], dim), dtype, seed=1)
    k, v = (normal((table.pages, heads[1], page, dim), dtype, seed=seed) for seed in (2, 3))
    return q, k, v


def expected(
    q: mx.array,
    k: mx.array | QuantizedTensor,
    v: mx.array | QuantizedTensor,
    table: PageTable,
    scale: float | None = None,
    window: int | None = None,
) -> np.ndarray:
    where = (np.array(x) for x in table.arrays)
    return oracle.paged_attention(exact(q), exact(k), exact(v), *where, scale, window)


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("window", [None, 1, 6])
def test_each_request_sees_its_own_keys(
    ops: OpSet, dtype: mx.Dtype, page: int, window: int | None
) -> None:
    table = page_table(REQUESTS, page, seed=0)
    q, k, v = inputs(table, page, dtype)
    out = ops.paged_attention(q, k, v, *table.arrays, window=window)
    assert (out.shape, out.dtype) == (q.shape, dtype)
    assert_close(out, expected(q, k, v, table, window=window))


@pytest.mark.parametrize("heads", [(1, 1), (14, 2), (6, 6)])
def test_heads_share_keys_and_the_scale_is_the_callers(
    ops: OpSet, dtype: mx.Dtype, heads: tuple[int, int]
) -> None:
    table = page_table(REQUESTS, 4, seed=1)
    q, k, v = inputs(table, 4, dtype, heads)
    out = ops.paged_attention(q, k, v, *table.arrays, 0.3)
    assert_close(out, expected(q, k, v, table, 0.3))


@pytest.mark.parametrize(("mode", "bits"), [("affine", 8), ("affine", 4), ("mxfp8", 8)])
def test_pages_may_be_packed(ops: OpSet, dtype: mx.Dtype, mode: str, bits: int) -> None:
    table = page_table(REQUESTS, 8, seed=2)
    q, *dense = inputs(table, 8, dtype)
    k, v = (quantize(x, 32, bits, mode) for x in dense)
    assert_close(ops.paged_attention(q, k, v, *table.arrays), expected(q, k, v, table))


def test_requests_may_share_pages_and_tokens_may_be_nobodys(ops: OpSet) -> None:
    table = PageTable(
        mx.array([[2, 0, -1], [2, 1, 99]], mx.int32),
        mx.array([1, 3, 4], mx.int32),  # token 0 and those from 4 on belong to no request
        mx.array([7, 8], mx.int32),
        3,
    )
    q, k, v = inputs(page_table([(6, 6)], 4, seed=0), 4, mx.float32)
    out = ops.paged_attention(q, k[:3], v[:3], *table.arrays)
    assert_close(out, expected(q, k[:3], v[:3], table))
    assert not mx.concatenate([out[:1], out[4:]]).any().item()


def test_no_requests_give_nothing(ops: OpSet) -> None:
    table = page_table([], 4, seed=0)
    q, k, v = inputs(table, 4, mx.float32)
    assert ops.paged_attention(q, k, v, *table.arrays).shape == (0, 4, 32)


Q, KV = mx.zeros((3, 4, 8)), mx.zeros((5, 2, 4, 8))
TABLE, STARTS, LENGTHS = (mx.array(x, mx.int32) for x in ([[0], [1]], [0, 1, 3], [1, 2]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": Q[0]}, r"q: expected axes T H D, got shape \(4, 8\)"),
        ({"k": KV[0]}, r"k: expected axes P Hkv page D, got shape \(2, 4, 8\)"),
        ({"k": KV[..., :4]}, r"k: expected shape \(5, 2, 4, 8\), got \(5, 2, 4, 4\)"),
        ({"v": KV[:4]}, r"v: expected shape \(5, 2, 4, 8\), got \(4, 2, 4, 8\)"),
        ({"q": Q[:, :3]}, r"q: expected a multiple of 2 key/value heads, got 3 heads"),
        ({"k": KV[:, :, :0], "v": KV[:, :, :0]}, "k: expected pages of one token or more, got 0"),
        ({"v": KV.astype(mx.float16)}, r"v: expected dtype .*float32, got .*float16"),
        ({"block_table": LENGTHS}, r"block_table: expected axes R blocks, got shape \(2,\)"),
        ({"query_starts": LENGTHS}, r"query_starts: expected shape \(3,\), got \(2,\)"),
        ({"context_lengths": STARTS}, r"context_lengths: expected shape \(2,\), got \(3,\)"),
        ({"query_starts": STARTS * 1.0}, r"query_starts: expected dtype .*int32, got .*float32"),
        ({"window": 0}, "window: expected one key or more, or None, got 0"),
    ],
)
def test_refuses_what_does_not_fit(
    ops: OpSet, unchecked: None, change: dict[str, mx.array], words: str
) -> None:
    fitting = {
        "q": Q,
        "k": KV,
        "v": KV,
        "block_table": TABLE,
        "query_starts": STARTS,
        "context_lengths": LENGTHS,
    }
    with pytest.raises(ValueError, match=words):
        ops.paged_attention(**fitting | change)
