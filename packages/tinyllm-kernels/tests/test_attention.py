import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import OpSet, quantize
from tinyllm_ops.testing import assert_close, exact, normal, oracle

# B, H, Hkv, L, S, D
SHAPES = [
    (1, 1, 1, 1, 1, 8),
    (1, 16, 8, 1, 37, 128),
    (2, 6, 2, 5, 9, 48),
    (1, 14, 2, 33, 33, 64),
    (3, 40, 8, 2, 130, 16),
    (1, 2, 1, 4, 7, 5),
]


def qkv(shape: tuple[int, ...], dtype: mx.Dtype) -> tuple[mx.array, mx.array, mx.array]:
    rows, heads, kv_heads, length, keys, dim = shape
    q = normal((rows, heads, length, dim), dtype, seed=1)
    k, v = (normal((rows, kv_heads, keys, dim), dtype, seed=seed) for seed in (2, 3))
    return q, k, v


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mask", [None, "causal"])
def test_attends(ops: OpSet, dtype: mx.Dtype, shape: tuple[int, ...], mask: str | None) -> None:
    q, k, v = qkv(shape, dtype)
    y = ops.attention(q, k, v, None, mask)
    assert (y.shape, y.dtype) == (q.shape, dtype)
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


def test_a_row_that_sees_nothing_is_zero(ops: OpSet, dtype: mx.Dtype) -> None:
    q, k, v = qkv((1, 2, 1, 6, 4, 16), dtype)
    y = ops.attention(q, k, v, None, "causal")  # the first two queries come before every key
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), None, "causal"))
    assert (y[:, :, :2] == 0).all().item()
    mask = mx.full((6, 4), -mx.inf)
    assert (ops.attention(q, k, v, None, mask) == 0).all().item()


def test_keys_of_a_cache_are_read_where_they_lie(ops: OpSet, dtype: mx.Dtype) -> None:
    buffers = [normal((2, 3, 64, 32), dtype, seed=seed) for seed in (1, 2)]
    k, v = (buffer[:, :, 4:41] for buffer in buffers)
    q = normal((2, 5, 6, 32), dtype, seed=3).swapaxes(1, 2)
    y = ops.attention(q, k, v, None, "causal")
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), None, "causal"))
    thin = [x[..., ::2] for x in (q, k, v)]
    assert_close(ops.attention(*thin), oracle.attention(*map(exact, thin)))


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


def test_nan_reaches_the_queries_that_see_it(ops: OpSet) -> None:
    q, k, v = qkv((1, 1, 1, 4, 4, 16), mx.float32)
    k[0, 0, 2, 5] = mx.nan
    seen = mx.isnan(ops.attention(q, k, v, None, "causal")).all(-1)
    assert seen[0, 0].tolist() == [False, False, True, True]


def test_no_keys_give_zeros(ops: OpSet, dtype: mx.Dtype) -> None:
    q, k = mx.ones((1, 2, 3, 8), dtype), mx.zeros((1, 1, 0, 8), dtype)
    assert (ops.attention(q, k, k) == 0).all().item()


def test_packed_keys_are_attended_to_as_well(ops: OpSet) -> None:
    q, k, v = qkv((1, 4, 2, 3, 10, 64), mx.float32)
    packed = [quantize(x, 32, 8) for x in (k, v)]
    y = ops.attention(q, *packed, None, "causal")
    expected = oracle.attention(exact(q), *map(exact, packed), None, "causal")
    assert_close(y, np.asarray(expected))
