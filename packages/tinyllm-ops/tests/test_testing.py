import math

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops.testing import TOLERANCE, assert_close, exact, normal, oracle, rounded


def test_a_number_within_tolerance_passes_and_one_beyond_does_not(dtype: mx.Dtype) -> None:
    expected = np.array([0.5, -8.0])
    for factor, passes in ((0.5, True), (2.0, False)):
        moved = expected + np.array([8 * TOLERANCE[dtype] * factor, 0.0])
        actual = mx.array(moved.astype(np.float32))
        if passes:
            assert_close(actual, expected, dtype)
        else:
            with pytest.raises(AssertionError, match=r"at \(0,\): expected 0.5, got 0\."):
                assert_close(actual, expected, dtype)


def test_names_the_worst_index() -> None:
    actual = mx.zeros((2, 3)).at[1, 2].add(7.0).at[0, 1].add(2.0)
    with pytest.raises(AssertionError, match=r"error 6, limit .*; at \(1, 2\): expected 1, got 7"):
        assert_close(actual, np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([math.inf, 1.0], [1.0, 1.0]),
        ([math.inf, 1.0], [-math.inf, 1.0]),
        ([math.nan, 1.0], [math.inf, 1.0]),
        ([math.nan, 1.0], [1.0, 1.0]),
        ([1.0, 1.0], [math.nan, 1.0]),
    ],
)
def test_infinities_and_nan_must_be_in_the_same_places(
    actual: list[float], expected: list[float]
) -> None:
    with pytest.raises(AssertionError, match=r"infinities and NaN differ; at \(0,\)"):
        assert_close(mx.array(actual), np.array(expected))
    assert_close(mx.array(expected), np.array(expected))


def test_an_infinity_does_not_widen_the_tolerance() -> None:
    with pytest.raises(AssertionError, match=r"at \(1,\): expected 1, got 2"):
        assert_close(mx.array([math.inf, 2.0]), np.array([math.inf, 1.0]))


def test_refuses_other_shapes_and_dtypes() -> None:
    with pytest.raises(AssertionError, match=r"expected shape \(1, 2\), got \(2,\)"):
        assert_close(mx.zeros(2), np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"dtype: expected one of .*float32.*, got .*int32"):
        assert_close(mx.zeros(2, mx.int32), np.zeros(2))


def test_inputs_are_rounded_once_and_read_exactly(dtype: mx.Dtype) -> None:
    x = normal((3, 5), dtype, seed=1)
    assert mx.array_equal(rounded(exact(x), dtype), x)
    assert mx.array_equal(normal((3, 5), dtype, seed=1), x)
    assert not mx.array_equal(normal((3, 5), dtype, seed=2), x)


def test_small_floats_are_those_of_the_specification() -> None:
    e2m1 = [oracle.minifloat(code, 2, 1) for code in range(8)]
    assert e2m1 == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert [oracle.minifloat(8 + code, 2, 1) for code in range(8)] == [-value for value in e2m1]
    assert oracle.minifloat(0b0_1111_110, 4, 3) == 448.0
    assert oracle.minifloat(0b0_0000_001, 4, 3) == 2.0**-9
    assert oracle.minifloat(0b1_0111_000, 4, 3) == -1.0
    assert math.isnan(oracle.minifloat(0b1_1111_111, 4, 3))


def test_codes_are_packed_little_end_first() -> None:
    codes = np.array([1, 2, 3, 4, 5, 6, 7, 8])
    assert oracle.pack(codes, 4).tolist() == [0x87654321]
    assert oracle.unpack(np.array([0x87654321], np.uint32), 4).tolist() == codes.tolist()
    straddling = np.array([0] * 10 + [0b101] + [0] * 21)  # code 10 is bits 30, 31 and 32
    assert oracle.pack(straddling, 3).tolist() == [1 << 30, 1, 0]
