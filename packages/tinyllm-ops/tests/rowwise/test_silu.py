import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_ops import OpSet, sigmoid, silu
from tinyllm_ops.testing import OPSETS, TOLERANCE, assert_close, exact, normal, oracle, rounded

TINY = [0.0, -0.0, 6e-8, -6e-8, 1e-4, -1e-4]
LARGE = [11.0, -11.0, 16.6, -16.6, 88.0, -88.0, 89.0, -89.0, 65504.0, -65504.0]


@pytest.mark.parametrize("shape", [(), (5,), (3, 7), (2, 3, 5), (2, 1, 3, 4), (0,), (2, 0, 3)])
def test_silu_is_x_times_its_sigmoid(
    device: mx.Device, dtype: mx.Dtype, shape: tuple[int, ...]
) -> None:
    x = normal(shape, dtype, seed=1, magnitude=3.0)
    y = silu(x)
    assert y.dtype == dtype
    assert_close(y, oracle.silu(exact(x)))


@pytest.mark.parametrize("values", [*([value] for value in TINY), *([x, 1.0] for x in LARGE)])
def test_no_branch_overflows_up_to_the_limits_of_float16(
    ops: OpSet, dtype: mx.Dtype, values: list[float]
) -> None:
    x = rounded(np.array(values), dtype)
    assert_close(silu(x), oracle.silu(exact(x)))
    assert_close(ops.swiglu(x, mx.ones_like(x)), oracle.silu(exact(x)))
    assert_close(sigmoid(x), oracle.sigmoid(exact(x)))


@pytest.mark.parametrize("value", [3e38, -3e38])
def test_silu_of_the_largest_float32_is_itself_or_zero(ops: OpSet, value: float) -> None:
    x = mx.array([value])
    assert_close(silu(x), np.array([max(value, 0.0)]))
    assert_close(ops.swiglu(x, mx.ones(1)), np.array([max(value, 0.0)]))


def test_sigmoid_of_the_infinities_is_0_and_1(device: mx.Device, dtype: mx.Dtype) -> None:
    x = rounded(np.array([-np.inf, np.inf, np.nan]), dtype)
    assert_close(sigmoid(x), np.array([0.0, 1.0, np.nan]))


@pytest.mark.parametrize("shape", [(), (5,), (3, 7), (2, 3, 5), (2, 1, 3, 4), (0, 4)])
def test_swiglu_is_silu_of_the_gate_times_up(
    ops: OpSet, dtype: mx.Dtype, shape: tuple[int, ...]
) -> None:
    gate = normal(shape, dtype, seed=1, magnitude=3.0)
    up = normal(shape, dtype, seed=2)
    y = ops.swiglu(gate, up)
    assert y.dtype == dtype
    assert_close(y, oracle.swiglu(exact(gate), exact(up)))


@given(
    shape=st.lists(st.integers(0, 9), max_size=4),
    magnitude=st.sampled_from([1e-4, 1.0, 100.0]),
    opset=st.sampled_from(OPSETS),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=30)
def test_swiglu_takes_any_shape(
    shape: list[int], magnitude: float, opset: OpSet, dtype: mx.Dtype
) -> None:
    gate = normal(shape, dtype, seed=1, magnitude=magnitude)
    up = normal(shape, dtype, seed=2, magnitude=magnitude)
    assert_close(opset.swiglu(gate, up), oracle.swiglu(exact(gate), exact(up)))


def test_the_worked_examples_come_out(ops: OpSet) -> None:
    x = mx.array([1.5])
    assert silu(mx.array([3.5])).item() == pytest.approx(3.3974, abs=5e-5)
    assert ops.swiglu(x * 2 + 0.5, x * 3).item() == pytest.approx(15.2883, abs=5e-4)


def test_silu_equals_mlx_nn_in_float32(device: mx.Device) -> None:
    x = normal((4, 33), seed=1, magnitude=10.0)
    assert_close(silu(x), exact(mlx.nn.silu(x)))


@pytest.mark.parametrize(
    ("up", "words"),
    [
        (mx.zeros((3, 2)), r"up: expected shape \(2, 3\), got \(3, 2\)"),
        (mx.zeros((3,)), r"up: expected shape \(2, 3\), got \(3,\)"),
        (mx.zeros((2, 3), mx.float16), r"up: expected dtype .*float32, got .*float16"),
    ],
)
def test_swiglu_refuses_different_shapes_and_dtypes(
    ops: OpSet, unchecked: None, up: mx.array, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        ops.swiglu(mx.zeros((2, 3)), up)
