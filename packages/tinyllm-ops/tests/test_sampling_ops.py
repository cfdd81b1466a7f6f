"""Ops on rows of scores, as a sampler calls them: argmax, top_k, log_probability."""

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import OpSet
from tinyllm_ops.testing import assert_close, exact, normal, oracle

SHAPES = [(1,), (7,), (3, 9), (2, 3, 600), (1, 151_936)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_argmax_is_the_first_of_the_largest(
    ops: OpSet, dtype: mx.Dtype, shape: tuple[int, ...]
) -> None:
    x = normal(shape, dtype, seed=1)  # many numbers of 16 bits are equal
    y = ops.argmax(x)
    assert y.dtype == mx.int32
    assert np.array_equal(np.array(y), exact(x).argmax(axis=-1))


def test_argmax_is_the_first_nan(ops: OpSet) -> None:
    x = mx.array([[1.0, mx.nan, 2.0, mx.nan], [-mx.inf, -mx.inf, -mx.inf, -mx.inf]])
    assert ops.argmax(x).tolist() == [1, 0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("k", [1, 5, 20])
def test_top_k_are_the_largest_in_order(
    ops: OpSet, dtype: mx.Dtype, shape: tuple[int, ...], k: int
) -> None:
    x = normal(shape, dtype, seed=2)
    k = min(k, shape[-1])
    scores, indices = ops.top_k(x, k)
    assert (scores.shape, scores.dtype, indices.dtype) == ((*shape[:-1], k), dtype, mx.int32)
    assert np.array_equal(exact(scores), -np.sort(-exact(x), axis=-1)[..., :k])
    assert np.array_equal(np.take_along_axis(exact(x), np.array(indices), -1), exact(scores))
    assert all(len(set(row)) == k for row in np.array(indices).reshape(-1, k))


def test_top_k_puts_nan_last(ops: OpSet) -> None:
    scores, indices = ops.top_k(mx.array([mx.nan, -mx.inf, 2.0, mx.nan, mx.inf]), 3)
    assert scores.tolist() == [mx.inf, 2.0, -mx.inf]
    assert indices.tolist() == [4, 2, 1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_log_probability_is_that_of_the_softmax(
    ops: OpSet, dtype: mx.Dtype, shape: tuple[int, ...]
) -> None:
    x = normal(shape, dtype, seed=3, magnitude=3.0)
    ids = np.random.default_rng(4).integers(0, shape[-1], (*shape[:-1], 3))
    y = ops.log_probability(x, mx.array(ids))
    assert_close(y, oracle.log_probability(exact(x), ids))


def test_log_probability_of_large_scores_keeps_their_differences(ops: OpSet) -> None:
    x = mx.array([10_000.0, 10_000.0 - 1 / 1024, 9_000.0])
    y = ops.log_probability(x, mx.array([0, 1]))
    assert_close(y, oracle.log_probability(exact(x), np.array([0, 1])))


def test_refuses_arguments_that_do_not_fit(ops: OpSet, unchecked: None) -> None:
    x = mx.zeros((2, 3))
    with pytest.raises(ValueError, match=r"x: expected rows of at least one score"):
        ops.argmax(mx.zeros((2, 0)))
    with pytest.raises(ValueError, match=r"k: expected 1 to 3, got 4"):
        ops.top_k(x, 4)
    with pytest.raises(ValueError, match=r"ids: expected shape \(2, 'K'\), got \(3, 1\)"):
        ops.log_probability(x, mx.zeros((3, 1), mx.int32))
    with pytest.raises(ValueError, match=r"ids: expected an integer dtype, got .*float32"):
        ops.log_probability(x, mx.zeros((2, 1)))


def test_no_rows_give_no_choices(ops: OpSet) -> None:
    x = mx.zeros((0, 5))
    assert ops.argmax(x).shape == (0,)
    assert [part.shape for part in ops.top_k(x, 2)] == [(0, 2), (0, 2)]
    assert ops.log_probability(x, mx.zeros((0, 3), mx.int32)).shape == (0, 3)
