"""Ops that compute each row on its own: RMSNorm, SwiGLU, RoPE and embedding."""

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_kernels.testing import same_bits
from tinyllm_ops import OpSet, Yarn
from tinyllm_ops.testing import assert_close, exact, normal, oracle

WIDTHS = [1, 7, 8, 15, 16, 17, 64, 100, 1024]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lead", [(), (1,), (3, 5), (2, 1, 40)])
def test_rms_norm(ops: OpSet, dtype: mx.Dtype, width: int, lead: tuple[int, ...]) -> None:
    x, weight = normal((*lead, width), dtype, seed=1), normal((width,), dtype, seed=2)
    y = ops.rms_norm(x, weight, 1e-6)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    assert_close(y, oracle.rms_norm(exact(x), exact(weight), 1e-6))


@pytest.mark.parametrize("magnitude", [1e-3, 1e3])
def test_rms_norm_of_small_and_large_numbers(ops: OpSet, magnitude: float) -> None:
    x, weight = normal((4, 100), seed=1, magnitude=magnitude), normal((100,), seed=2)
    assert_close(ops.rms_norm(x, weight, 1e-6), oracle.rms_norm(exact(x), exact(weight), 1e-6))


def test_rms_norm_takes_rows_with_gaps(ops: OpSet, dtype: mx.Dtype) -> None:
    x = normal((6, 5, 40), dtype, seed=1).swapaxes(0, 1)[:, ::2, 4:36]
    weight = normal((64,), dtype, seed=2)[::2]
    y = ops.rms_norm(x, weight)
    assert_close(y, oracle.rms_norm(exact(x), exact(weight)))


def test_nan_and_inf_stay_in_their_row_and_pair(ops: OpSet, dtype: mx.Dtype) -> None:
    x, weight = normal((4, 100), dtype, seed=1), normal((100,), dtype, seed=2)
    x[1, 70], x[2, 99] = mx.nan, mx.inf
    with np.errstate(invalid="ignore"):  # infinity over infinity
        expected = oracle.rms_norm(exact(x), exact(weight), 1e-5)
    assert_close(ops.rms_norm(x, weight), expected)
    heads = normal((1, 2, 3, 64), dtype, seed=3)
    heads[0, 1, 2, 40] = mx.nan
    y = ops.rope(heads, slice(0, 2), 1e4)
    assert np.argwhere(np.isnan(exact(y))).tolist() == [[0, 1, 2, 8], [0, 1, 2, 40]]
    table = normal((9, 100), dtype, seed=4)
    table[3, 5], table[3, 6] = mx.inf, mx.nan
    ids = mx.array([2, 3, 8])
    assert_close(ops.embedding(ids, table), exact(table)[[2, 3, 8]])


@pytest.mark.parametrize("width", WIDTHS)
def test_swiglu(ops: OpSet, dtype: mx.Dtype, width: int) -> None:
    gate, up = normal((3, width), dtype, seed=1, magnitude=6.0), normal((3, width), dtype, seed=2)
    assert_close(ops.swiglu(gate, up), oracle.swiglu(exact(gate), exact(up)))


def test_swiglu_of_numbers_beyond_the_range_of_exp(ops: OpSet) -> None:
    gate = mx.array([-1e30, -500.0, -88.0, -1e-30, 0.0, 1e-30, 88.0, 500.0, 1e30])
    y = ops.swiglu(gate, mx.ones(9))
    assert np.array(y) == pytest.approx([0, 0, -88 * np.exp(-88), 0, 0, 0, 88, 500, 1e30])
    assert mx.isnan(ops.swiglu(mx.array([mx.nan]), mx.ones(1))).item()


def test_swiglu_takes_gates_with_gaps(ops: OpSet, dtype: mx.Dtype) -> None:
    wide = normal((6, 80), dtype, seed=1)
    gate, up = wide[::2, 3:70:2], wide[1::2, 70:3:-2]
    assert_close(ops.swiglu(gate, up), oracle.swiglu(exact(gate), exact(up)))


def test_swiglu_of_a_large_array_is_done_in_parts(ops: OpSet, dtype: mx.Dtype) -> None:
    gate, up = normal((70_001,), dtype, seed=1), normal((70_001,), dtype, seed=2)
    assert_close(ops.swiglu(gate, up), oracle.swiglu(exact(gate), exact(up)))


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("scaling", [None, Yarn(4.0, 64)], ids=["plain", "yarn"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 5, 3, 10), (1, 33, 2, 64), (2, 3, 4, 128)])
def test_rope(
    ops: OpSet, dtype: mx.Dtype, shape: tuple[int, ...], scaling: Yarn | None, traditional: bool
) -> None:
    x = normal(shape, dtype, seed=1)
    y = ops.rope(x, slice(7, 7 + shape[1]), 1e4, traditional, scaling)
    where = np.arange(7, 7 + shape[1])
    expected = oracle.rope(exact(x), where, 1e4, traditional, scaling)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    assert_close(y, expected, position=7 + shape[1])


@pytest.mark.parametrize(
    ("positions", "where"),
    [
        (mx.array([9, 2, 2]), [[9, 2, 2]] * 2),
        (mx.array([[0, 5, 1], [30, 2, 2]], dtype=mx.uint32), [[0, 5, 1], [30, 2, 2]]),
    ],
)
def test_rope_at_positions_of_each_row(
    ops: OpSet, positions: object, where: list[list[int]]
) -> None:
    x = normal((2, 3, 4, 16), seed=1)
    assert_close(ops.rope(x, positions, 1e4), oracle.rope(exact(x), np.array(where), 1e4))  # type: ignore[arg-type]


@pytest.mark.parametrize("dims", [2, 34, 64, 256])
@pytest.mark.parametrize("traditional", [False, True])
def test_rope_of_the_first_features(
    ops: OpSet, dtype: mx.Dtype, dims: int, traditional: bool
) -> None:
    x = normal((2, 3, 2, 256), dtype, seed=1)
    y = ops.rope(x, slice(0, 3), 1e4, traditional, None, dims)
    assert_close(y, oracle.rope(exact(x), np.arange(3), 1e4, traditional, None, dims))
    assert same_bits(y[..., dims:], x[..., dims:])


def test_rope_takes_heads_with_gaps(ops: OpSet, dtype: mx.Dtype) -> None:
    x = normal((2, 4, 6, 32), dtype, seed=1).swapaxes(1, 2)[:, :, ::2]
    assert_close(ops.rope(x, slice(0, 6), 1e4), oracle.rope(exact(x), np.arange(6), 1e4))
    thin = normal((1, 3, 2, 32), dtype, seed=2)[..., ::2]
    assert_close(ops.rope(thin, slice(0, 3), 1e4), oracle.rope(exact(thin), np.arange(3), 1e4))


def test_empty_inputs_give_empty_outputs(ops: OpSet, dtype: mx.Dtype) -> None:
    assert ops.rms_norm(mx.zeros((0, 8), dtype), mx.ones((8,), dtype)).shape == (0, 8)
    assert ops.swiglu(mx.zeros((2, 0), dtype), mx.zeros((2, 0), dtype)).shape == (2, 0)
    assert ops.rope(mx.zeros((1, 0, 2, 8), dtype)).shape == (1, 0, 2, 8)
