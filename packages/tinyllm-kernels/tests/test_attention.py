from itertools import pairwise
from typing import Literal

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_kernels import opset
from tinyllm_ops import OpSet, PageTable
from tinyllm_ops.testing import TOLERANCE, assert_close, exact, normal, oracle

# B, H, Hkv, L, S, D
SHAPES = [
    (1, 1, 1, 1, 1, 8),
    (1, 16, 8, 1, 37, 128),
    (2, 6, 2, 5, 9, 48),
    (1, 14, 2, 33, 33, 64),
    (3, 40, 8, 2, 130, 16),
    (1, 2, 1, 4, 7, 5),
    (1, 3, 3, 3, 257, 80),  # few queries, and one key more than a split of a decode step
    (2, 7, 1, 1, 513, 64),
    (1, 4, 2, 127, 127, 96),  # blocks of queries, and of keys
    (1, 2, 2, 129, 513, 48),
    (1, 7, 1, 33, 513, 128),
    (1, 1, 1, 513, 129, 16),  # queries before every key
    (1, 8, 2, 1, 300, 256),
    (1, 8, 2, 35, 300, 256),
]


def qkv(shape: tuple[int, ...], dtype: mx.Dtype) -> tuple[mx.array, mx.array, mx.array]:
    rows, heads, kv_heads, length, keys, dim = shape
    q = normal((rows, heads, length, dim), dtype, seed=1)
    k, v = (normal((rows, kv_heads, keys, dim), dtype, seed=seed) for seed in (2, 3))
    return q, k, v


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mask", [None, "causal"])
def test_attends(
    ops: OpSet, dtype: mx.Dtype, shape: tuple[int, ...], mask: Literal["causal"] | None
) -> None:
    q, k, v = qkv(shape, dtype)
    y = ops.attention(q, k, v, None, mask)
    assert (y.shape, y.dtype) == (q.shape, dtype)
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), None, mask))


@given(
    length=st.integers(1, 33),
    keys=st.integers(1, 33),
    heads=st.sampled_from([(1, 1), (4, 2), (7, 1), (6, 6)]),
    dim=st.sampled_from([1, 5, 48, 64, 80, 96, 128]),
    mask=st.sampled_from([None, "causal"]),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=100)
def test_takes_any_lengths(
    length: int,
    keys: int,
    heads: tuple[int, int],
    dim: int,
    mask: Literal["causal"] | None,
    dtype: mx.Dtype,
) -> None:
    q, k, v = qkv((1, *heads, length, keys, dim), dtype)
    y = opset("cpu").attention(q, k, v, None, mask)
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), None, mask))


@pytest.mark.parametrize("mask_shape", [(5, 9), (1, 9), (2, 1, 5, 9), (6, 5, 1), (2, 6, 5, 9)])
@pytest.mark.parametrize("mask_dtype", [mx.float32, mx.bfloat16])
def test_adds_a_mask_of_any_shape(
    ops: OpSet, mask_shape: tuple[int, ...], mask_dtype: mx.Dtype
) -> None:
    q, k, v = qkv((2, 6, 2, 5, 9, 32), mx.float32)
    mask = normal(mask_shape, mask_dtype, seed=4)
    y = ops.attention(q, k, v, 0.3, mask)
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), 0.3, exact(mask)))


@pytest.mark.parametrize("length", [1, 40])
def test_a_boolean_mask_is_true_where_a_key_is_visible(
    ops: OpSet, dtype: mx.Dtype, length: int
) -> None:
    q, k, v = qkv((2, 6, 2, length, 170, 32), dtype)
    visible = normal((2, 1, length, 170), seed=4) > 0
    y = ops.attention(q, k, v, None, visible)
    mask = np.where(np.array(visible), 0.0, -np.inf)
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), None, mask))


@pytest.mark.parametrize("lengths", [(1, 300), (40, 170)])
def test_a_window_is_a_mask(ops: OpSet, dtype: mx.Dtype, lengths: tuple[int, int]) -> None:
    length, keys = lengths
    q, k, v = qkv((1, 4, 2, length, keys, 64), dtype)
    behind = np.arange(length)[:, None] + keys - length - np.arange(keys)
    mask = np.where((behind >= 0) & (behind < 21), 0.0, -np.inf)
    y = ops.attention(q, k, v, None, mx.array(mask.astype(np.float32)))
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), None, mask))


def test_keys_of_a_ring_may_stand_in_any_order(ops: OpSet, dtype: mx.Dtype) -> None:
    q, k, v = qkv((1, 4, 2, 1, 300, 64), dtype)
    y = ops.attention(q, mx.roll(k, 77, axis=2), mx.roll(v, 77, axis=2))  # type: ignore[call-arg]
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v)))


def test_a_row_without_visible_keys_is_zero(ops: OpSet, dtype: mx.Dtype) -> None:
    q, k, v = qkv((1, 2, 1, 6, 4, 16), dtype)
    y = ops.attention(q, k, v, None, "causal")  # the first two queries come before every key
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), None, "causal"))
    assert (y[:, :, :2] == 0).all().item()
    mask = mx.full((6, 4), -mx.inf)
    assert (ops.attention(q, k, v, None, mask) == 0).all().item()


def test_keys_of_a_cache_are_read_in_place(ops: OpSet, dtype: mx.Dtype) -> None:
    buffers = [normal((2, 3, 64, 32), dtype, seed=seed) for seed in (1, 2)]
    k, v = (buffer[:, :, 4:41] for buffer in buffers)
    q = normal((2, 5, 6, 32), dtype, seed=3).swapaxes(1, 2)
    y = ops.attention(q, k, v, None, "causal")
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), None, "causal"))
    thin = [x[..., ::2] for x in (q, k, v)]
    assert_close(ops.attention(*thin), oracle.attention(*map(exact, thin)))  # type: ignore[arg-type]


@pytest.mark.parametrize("lead", [(), (2, 3)])
def test_takes_any_number_of_leading_axes(ops: OpSet, lead: tuple[int, ...]) -> None:
    q, k = normal((*lead, 4, 5, 16), seed=1), normal((*lead, 2, 7, 16), seed=2)
    for mask in (None, normal((4, 5, 7), seed=3)):
        expected = None if mask is None else exact(mask)
        y = ops.attention(q, k, k, None, mask)
        assert_close(y, oracle.attention(exact(q), exact(k), exact(k), None, expected))


def test_scores_far_apart_do_not_overflow(ops: OpSet, dtype: mx.Dtype) -> None:
    q, k, v = qkv((1, 2, 1, 3, 20, 64), dtype)
    y = ops.attention(q * 40, k * 40, v)
    assert_close(y, oracle.attention(exact(q * 40), exact(k * 40), exact(v)))


@pytest.mark.parametrize("size", [1e-25, 3e-5, 1.0, 6e4, 1e30])
def test_parallel_rows_have_the_largest_sums(ops: OpSet, dtype: mx.Dtype, size: float) -> None:
    """Integer sums of prompts stay within 32 bits: those of q and k, and those of equal values."""
    if dtype == mx.float16 and not 1e-5 < size < 1e5:
        pytest.skip("float16 has no such numbers")
    signs = mx.sign(normal((128,), seed=1))
    directions = mx.sign(normal((300, 1), seed=2))
    q = mx.broadcast_to(signs, (1, 2, 40, 128)).astype(dtype)
    k = mx.broadcast_to(signs * directions * size, (1, 1, 300, 128)).astype(dtype)
    v = mx.broadcast_to(signs * size, (1, 1, 300, 128)).astype(dtype)
    scale = 1 / (128 * size)
    y = ops.attention(q, k, v, scale, "causal")
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), scale, "causal"))


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_a_large_feature_leaves_the_others_exact(ops: OpSet, dtype: mx.Dtype, which: str) -> None:
    q, k, v = qkv((1, 2, 1, 40, 300, 128), dtype)
    {"q": q, "k": k, "v": v}[which][..., 7] *= 100
    y = exact(ops.attention(q, k, v, 0.02, "causal"))
    expected = oracle.attention(exact(q), exact(k), exact(v), 0.02, "causal")
    rest = [*range(7), *range(8, 128)]
    assert_close(mx.array(y[..., rest]).astype(dtype), expected[..., rest])


def test_one_key_may_have_all_the_weight(ops: OpSet, dtype: mx.Dtype) -> None:
    q, k, v = qkv((1, 2, 1, 40, 300, 64), dtype)
    k[..., 100, :] = q[0, 0, 0] * 40
    v[..., 100, :] *= 50
    y = ops.attention(q, k, v)
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v)))


@pytest.mark.parametrize("length", [4, 70])
@pytest.mark.parametrize("bad", [mx.nan, mx.inf, -mx.inf])
@pytest.mark.parametrize("which", ["k", "v"])
def test_nan_and_inf_reach_only_the_queries_that_see_them(
    ops: OpSet, dtype: mx.Dtype, length: int, bad: float, which: str
) -> None:
    q, k, v = qkv((1, 2, 1, length, length, 16), dtype)
    q = mx.abs(q)  # so that an infinite key gets an infinite score of the same sign
    at = length // 2
    if which == "k":
        k[0, 0, at, 5] = bad
    else:
        v[0, 0, at, 5] = bad
    y = exact(ops.attention(q, k, v, None, "causal"))
    before = oracle.attention(*(exact(x[:, :, :at]) for x in (q, k, v)), None, "causal")  # type: ignore[arg-type, call-arg]
    assert_close(mx.array(y[:, :, :at]).astype(dtype), before)
    if which == "v":
        assert (np.isnan(y[:, :, at:, 5]) if np.isnan(bad) else y[:, :, at:, 5] == bad).all()
        assert np.isfinite(y[:, :, at:, :5]).all()
    elif bad == -mx.inf:  # a score of -inf gives the key a weight of 0
        assert np.isfinite(y).all()
    else:
        assert np.isnan(y[:, :, at:]).all()


@pytest.mark.parametrize("dim", [64, 80, 128])
@pytest.mark.parametrize("bad", [mx.nan, mx.inf, -mx.inf])
@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize("at", [290, 329])
def test_nan_and_inf_keep_the_bits_of_other_numbers(
    ops: OpSet, dtype: mx.Dtype, at: int, which: str, bad: float, dim: int
) -> None:
    """Rows before a non-finite key share a block of keys with the rows after it."""
    q, k, v = qkv((1, 2, 1, 330, 330, dim), dtype)
    clean = ops.attention(q, k, v, None, "causal")
    (k if which == "k" else v)[0, 0, at, 5] = bad
    y = ops.attention(q, k, v, None, "causal")
    assert mx.array_equal(y[:, :, :at], clean[:, :, :at]).item()
    if which == "v":
        rest = [*range(5), *range(6, dim)]
        assert mx.array_equal(y[..., rest], clean[..., rest]).item()
        after = exact(y[:, :, at:, 5])
        assert (np.isnan(after) if np.isnan(bad) else after == bad).all()


@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("chunk", [7, 100, 256, 333])
def test_chunks_have_the_bits_of_the_whole_prompt(
    ops: OpSet, dtype: mx.Dtype, chunk: int, window: int | None
) -> None:
    length, page, dim = 700, 16, 128
    pages = -(-length // page)
    q = normal((length, 4, dim), dtype, seed=1)
    k, v = (normal((pages, 2, page, dim), dtype, seed=seed) for seed in (2, 3))

    def attend(first: int, last: int) -> mx.array:
        where = PageTable.of([(range(pages), first, last)], num_pages=pages, page_size=page)
        return ops.paged_attention(q[first:last], k, v, where, window=window, phase="prefill")

    edges = [*range(0, length, chunk), length]
    parts = mx.concatenate([attend(*edge) for edge in pairwise(edges)])
    assert mx.array_equal(parts, attend(0, length)).item()


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_the_scale_may_be_negative_or_zero(ops: OpSet, dtype: mx.Dtype, scale: float) -> None:
    q, k, v = qkv((1, 2, 1, 40, 300, 64), dtype)
    y = ops.attention(q, k, v, scale, "causal")
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), scale, "causal"))


def test_scores_may_grow_along_the_keys(ops: OpSet, dtype: mx.Dtype) -> None:
    """Kernels subtract the largest score so far, and rescale when a block of keys exceeds it."""
    q, k, v = qkv((1, 2, 1, 40, 900, 64), dtype)
    k = k * mx.linspace(0, 12, 900).astype(dtype)[:, None]
    y = ops.attention(q, k, v, None, "causal")
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), None, "causal"))


@pytest.mark.parametrize("length", [1, 20])
def test_a_row_has_the_same_result_alone_and_in_a_batch(
    ops: OpSet, dtype: mx.Dtype, length: int
) -> None:
    q, k, v = qkv((3, 6, 2, length, 600, 64), dtype)
    together = ops.attention(q, k, v, None, "causal")
    for row in range(3):
        alone = ops.attention(q[row], k[row], v[row], None, "causal")
        assert mx.array_equal(together[row], alone).item()


def test_no_keys_give_zeros(ops: OpSet, dtype: mx.Dtype) -> None:
    q, k = mx.ones((1, 2, 3, 8), dtype), mx.zeros((1, 1, 0, 8), dtype)
    assert (ops.attention(q, k, k) == 0).all().item()
