import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_ops import OpSet
from tinyllm_ops.testing import OPSETS, TOLERANCE, assert_close, exact, normal, oracle, rounded


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-5, 0.5])
def test_divides_by_the_root_of_mean_square_plus_eps(
    ops: OpSet, dtype: mx.Dtype, lead: tuple[int, ...], eps: float
) -> None:
    x = normal((*lead, 129), dtype, seed=1)
    weight = normal((129,), dtype, seed=2)
    y = ops.rms_norm(x, weight, eps)
    assert y.dtype == dtype
    assert_close(y, oracle.rms_norm(exact(x), exact(weight), eps))


@given(
    lead=st.lists(st.integers(0, 4), max_size=3),
    dim=st.integers(1, 300),
    opset=st.sampled_from(OPSETS),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=30)
def test_takes_any_shape(lead: list[int], dim: int, opset: OpSet, dtype: mx.Dtype) -> None:
    x = normal((*lead, dim), dtype, seed=1)
    weight = normal((dim,), dtype, seed=2)
    assert_close(opset.rms_norm(x, weight), oracle.rms_norm(exact(x), exact(weight)))


def test_the_worked_example_comes_out(ops: OpSet) -> None:
    y = ops.rms_norm(mx.array([2.0, -1.0, 3.0, 0.0]), mx.ones(4), 0.0)
    assert np.array(y) == pytest.approx([1.069, -0.535, 1.604, 0.000], abs=5e-4)


@pytest.mark.parametrize("magnitude", [1e-4, 1e-2, 1e3, 1e4])
def test_squares_do_not_overflow_or_vanish_in_float16(
    ops: OpSet, dtype: mx.Dtype, magnitude: float
) -> None:
    x = normal((3, 64), dtype, seed=1, magnitude=magnitude)
    weight = normal((64,), dtype, seed=2)
    assert_close(ops.rms_norm(x, weight), oracle.rms_norm(exact(x), exact(weight)))


def test_eps_is_inside_the_root(ops: OpSet) -> None:
    # The root is sqrt(0 + 1e-4) = 1e-2. With eps outside of the root the divisor would be 1e-4, and
    # the result a hundred times as large.
    y = ops.rms_norm(mx.full((1, 4), 1e-6), mx.ones(4), 1e-4)
    assert_close(y, np.full((1, 4), 1e-4))


def test_zeros_give_zeros(ops: OpSet, dtype: mx.Dtype) -> None:
    y = ops.rms_norm(mx.zeros((2, 8), dtype), mx.ones(8, dtype), 1e-5)
    assert_close(y, np.zeros((2, 8)))


def test_rounds_the_normalized_value_before_the_weight(ops: OpSet) -> None:
    # With a weight of ones, the result is the rounded normalized value. Any other weight must
    # multiply that rounded value.
    x = rounded(np.array([[1.0, 2**0.5]]), mx.bfloat16)
    normalized = exact(ops.rms_norm(x, mx.ones(2, mx.bfloat16), 0.0))
    weight = normal((64, 2), mx.bfloat16, seed=1)
    twice = [exact(ops.rms_norm(x, row, 0.0)) for row in weight]
    expected = [exact(rounded(normalized * exact(row), mx.bfloat16)) for row in weight]
    assert np.array_equal(twice, expected)


def test_equals_mlx_in_float32(ops: OpSet) -> None:
    layer = mlx.nn.RMSNorm(33, eps=1e-6)
    layer.weight = normal((33,), seed=1)
    x = normal((4, 33), seed=2)
    y = ops.rms_norm(x, layer.weight, 1e-6)
    assert_close(y, exact(layer(x)))
    assert_close(y, exact(mx.fast.rms_norm(x, layer.weight, 1e-6)))


@pytest.mark.parametrize(
    ("x", "weight", "eps", "words"),
    [
        (mx.zeros((2, 3)), mx.zeros(2), 1e-5, r"weight: expected shape \(3,\), got \(2,\)"),
        (mx.zeros((2, 3)), mx.zeros((1, 3)), 1e-5, r"weight: expected shape \(3,\), got \(1, 3\)"),
        (mx.zeros(()), mx.zeros(()), 1e-5, r"x: expected shape \(..., D\), got \(\)"),
        (mx.zeros(3), mx.zeros(3, mx.float16), 1e-5, r"weight: expected dtype .*32, got .*float16"),
        (mx.zeros(3), mx.zeros(3), -1.0, r"eps: expected a number not below 0, got -1.0"),
        (mx.zeros(3), mx.zeros(3), float("nan"), r"eps: expected a number not below 0, got nan"),
    ],
)
def test_refuses_arguments_that_do_not_fit(
    ops: OpSet, unchecked: None, x: mx.array, weight: mx.array, eps: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        ops.rms_norm(x, weight, eps)
