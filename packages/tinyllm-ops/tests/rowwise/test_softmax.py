import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_ops import OpSet
from tinyllm_ops.testing import OPSETS, TOLERANCE, assert_close, exact, normal, oracle, rounded


@pytest.mark.parametrize("shape", [(1,), (17,), (3, 9), (2, 3, 5), (2, 2, 3, 7)])
def test_sums_to_one_along_any_axis(ops: OpSet, dtype: mx.Dtype, shape: tuple[int, ...]) -> None:
    x = normal(shape, dtype, seed=1, magnitude=4.0)
    for axis in range(-len(shape), len(shape)):
        y = ops.softmax(x, axis)
        assert y.dtype == dtype
        assert_close(y, oracle.softmax(exact(x), axis))


@given(
    shape=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    data=st.data(),
    opset=st.sampled_from(OPSETS),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=30)
def test_takes_any_shape(
    shape: list[int], data: st.DataObject, opset: OpSet, dtype: mx.Dtype
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = normal(shape, dtype, seed=1)
    assert_close(opset.softmax(x, axis), oracle.softmax(exact(x), axis))


def test_a_row_of_minus_infinity_gives_zeros(ops: OpSet, dtype: mx.Dtype) -> None:
    x = rounded(np.array([[-np.inf] * 3, [0.0, -np.inf, 0.0], [-np.inf, -np.inf, 7.0]]), dtype)
    assert_close(ops.softmax(x), np.array([[0.0] * 3, [0.5, 0.0, 0.5], [0.0, 0.0, 1.0]]))


def test_survives_the_largest_scores_of_float16(ops: OpSet, dtype: mx.Dtype) -> None:
    x = rounded(np.array([[65504.0, 65504.0, 65472.0], [-65504.0, 65504.0, -65504.0]]), dtype)
    assert_close(ops.softmax(x), oracle.softmax(exact(x)))


def test_does_not_hide_nan(ops: OpSet, dtype: mx.Dtype) -> None:
    x = rounded(np.array([[np.nan, 1.0], [0.0, 0.0]]), dtype)
    assert_close(ops.softmax(x), np.array([[np.nan, np.nan], [0.5, 0.5]]))


def test_sums_a_long_row_in_float32(ops: OpSet, dtype: mx.Dtype) -> None:
    # In float16 the sum of 100,000 ones is infinite, in bfloat16 it stops at 256.
    assert_close(ops.softmax(mx.zeros((1, 100_000), dtype)), np.full((1, 100_000), 1e-5))


def test_equals_mlx_in_float32(ops: OpSet) -> None:
    x = normal((4, 33), seed=1, magnitude=10.0)
    assert_close(ops.softmax(x), exact(mx.softmax(x, axis=-1)))


@pytest.mark.parametrize(("shape", "axis"), [((2, 3), 2), ((2, 3), -3), ((), -1)])
def test_refuses_an_axis_that_x_does_not_have(
    ops: OpSet, shape: tuple[int, ...], axis: int
) -> None:
    with pytest.raises(ValueError, match=f"expected one of the {len(shape)} axes of x, got {axis}"):
        ops.softmax(mx.zeros(shape), axis)
