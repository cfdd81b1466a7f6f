import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import OpSet
from tinyllm_ops.testing import assert_close, exact, normal, oracle

SIZES = [1, 7, 128, 129, 16_384, 16_385, 40_000]  # around a block, and a thread's stretch
K = [1, 2, 20, 300, 20_000]


def ranking(x: np.ndarray) -> np.ndarray:
    """All indices, the largest number first, of equal ones the first."""
    return np.argsort(-x, axis=-1, kind="stable")


@pytest.mark.parametrize("size", SIZES)
def test_argmax(ops: OpSet, dtype: mx.Dtype, size: int) -> None:
    x = normal((5, size), dtype, seed=1)
    y = ops.argmax(x)
    assert y.dtype == mx.int32
    assert np.array_equal(np.array(y), exact(x).argmax(axis=-1))
    assert ops.argmax(x[:, ::-1]).tolist() == exact(x[:, ::-1]).argmax(axis=-1).tolist()


@pytest.mark.parametrize("place", [0, 3, 200, 16_390, 39_999])
def test_argmax_of_a_row_with_nan(ops: OpSet, dtype: mx.Dtype, place: int) -> None:
    x = normal((40_000,), dtype, seed=1)
    x[place] = mx.nan
    x[-1] = mx.nan
    assert ops.argmax(x).item() == place
    assert ops.argmax(mx.full((300,), -mx.inf, dtype)).item() == 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", K)
def test_top_k(ops: OpSet, dtype: mx.Dtype, size: int, k: int) -> None:
    x, k = normal((2, size), dtype, seed=2), min(k, size)
    scores, indices = ops.top_k(x, k)
    assert np.array_equal(np.array(indices), ranking(exact(x))[:, :k])
    assert np.array_equal(exact(scores), -np.sort(-exact(x), axis=-1)[:, :k])


def test_top_k_takes_nan_last(ops: OpSet, dtype: mx.Dtype) -> None:
    x = mx.full((20_000,), mx.nan, dtype)
    x[700], x[19_000] = -mx.inf, 1.0
    scores, indices = ops.top_k(x, 4)
    assert indices.tolist() == [19_000, 700, 0, 1]
    assert scores[:2].tolist() == [1.0, -mx.inf]


def test_log_probability_ignores_parts_that_are_masked(ops: OpSet) -> None:
    """A row is summed in parts. In one part every score is -inf, and the others are far below 0."""
    scores = np.full((1, 40_000), -2000, np.float32)
    scores[:, :20_000] = -np.inf
    scores[:, 30_000] = -1990
    ids = np.array([[30_000, 39_999]], np.int32)
    expected = oracle.log_probability(scores.astype(np.float64), ids)
    assert_close(ops.log_probability(mx.array(scores), mx.array(ids)), expected)


@pytest.mark.parametrize("size", SIZES)
def test_log_probability(ops: OpSet, dtype: mx.Dtype, size: int) -> None:
    x = normal((2, 3, size), dtype, seed=3, magnitude=3.0)
    ids = np.random.default_rng(4).integers(0, size, (2, 3, 4))
    y = ops.log_probability(x, mx.array(ids))
    assert y.dtype == mx.float32
    assert_close(y, oracle.log_probability(exact(x), ids))


def test_scores_with_gaps_are_read_as_they_are(ops: OpSet, dtype: mx.Dtype) -> None:
    x = normal((6, 20_000), dtype, seed=6)[::2, 3:19_000:3]
    numbers, ids = exact(x), mx.array([[5], [0], [6_331]])
    assert np.array_equal(np.array(ops.argmax(x)), numbers.argmax(axis=-1))
    assert np.array_equal(np.array(ops.top_k(x, 7)[1]), ranking(numbers)[:, :7])
    assert_close(ops.log_probability(x, ids), oracle.log_probability(numbers, np.array(ids)))


def test_rows_do_not_depend_on_the_rows_beside_them(ops: OpSet, dtype: mx.Dtype) -> None:
    x, ids = normal((9, 30_000), dtype, seed=5), mx.arange(9)[:, None]
    alone = [ops.log_probability(x[i], ids[i]) for i in range(9)]
    assert mx.array_equal(ops.log_probability(x, ids), mx.stack(alone))


def test_empty_inputs_give_empty_outputs(ops: OpSet) -> None:
    x = mx.zeros((0, 5))
    assert ops.argmax(x).shape == (0,)
    assert [part.shape for part in ops.top_k(x, 2)] == [(0, 2), (0, 2)]
    assert ops.log_probability(x, mx.zeros((0, 3), mx.int32)).shape == (0, 3)
