"""Softmax, SwiGLU, embedding, and rotary position embedding with and without a norm."""

from dataclasses import replace
from itertools import cycle

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_kernels.metal import METAL
from tinyllm_ops import REFERENCE, OpSet, Yarn, norm_rope, quantize
from tinyllm_ops.testing import TOLERANCE, assert_close, exact, normal, oracle, rounded

SIZES = [1, 23, 31, 32, 33, 77, 127, 129, 1023, 1024, 1025]
EACH_SIZE = list(zip(SIZES, cycle(TOLERANCE), strict=False))
BITS, GROUPS = [2, 3, 4, 5, 6, 8], [32, 64, 128]
EACH_FORMAT = list(zip(BITS, cycle(GROUPS), strict=False))
SHAPES, YARN = [(1, 1, 1, 2), (2, 5, 3, 10), (1, 33, 2, 80), (2, 3, 4, 128)], Yarn(4.0, 64)


def check_softmax(metal: OpSet, dtype: mx.Dtype, width: int) -> None:
    x = normal((3, width), dtype, seed=1, magnitude=5.0)
    x[1, ::2] = -mx.inf
    x[2] = -mx.inf  # a query that sees no key
    assert_close(metal.softmax(x), oracle.softmax(exact(x)))


@pytest.mark.parametrize(("width", "dtype"), EACH_SIZE)
def test_softmax(metal: OpSet, dtype: mx.Dtype, width: int) -> None:
    check_softmax(metal, dtype, width)


@pytest.mark.parametrize("width", SIZES)
def test_softmax_of_any_size_and_dtype(metal_checked: OpSet, dtype: mx.Dtype, width: int) -> None:
    check_softmax(metal_checked, dtype, width)


def test_softmax_along_another_axis_and_of_long_rows(metal: OpSet) -> None:
    x = normal((3, 5, 33), seed=1)
    assert_close(metal.softmax(x, 1), oracle.softmax(exact(x), 1))
    long = normal((1, 4200), seed=2, magnitude=30.0)
    assert_close(metal.softmax(long), oracle.softmax(exact(long)))
    assert metal.softmax(mx.zeros((2, 0))).shape == (2, 0)


def check_swiglu(metal: OpSet, dtype: mx.Dtype, width: int) -> None:
    gate, up = normal((width,), dtype, seed=1, magnitude=6.0), normal((width,), dtype, seed=2)
    assert_close(metal.swiglu(gate, up), oracle.swiglu(exact(gate), exact(up)))


@pytest.mark.parametrize(("width", "dtype"), EACH_SIZE)
def test_swiglu(metal: OpSet, dtype: mx.Dtype, width: int) -> None:
    check_swiglu(metal, dtype, width)


@pytest.mark.parametrize("width", SIZES)
def test_swiglu_of_any_size_and_dtype(metal_checked: OpSet, dtype: mx.Dtype, width: int) -> None:
    check_swiglu(metal_checked, dtype, width)


def test_swiglu_of_numbers_beyond_the_range_of_exp(metal: OpSet) -> None:
    gate = mx.array([[-1e30, -500.0, -88.0, -1e-30, 0.0, 1e-30, 88.0, 500.0, 1e30]])
    y = metal.swiglu(gate, mx.ones((1, 9)))[0]
    assert np.array(y) == pytest.approx([0, 0, -88 * np.exp(-88), 0, 0, 0, 88, 500, 1e30])
    assert mx.isnan(metal.swiglu(mx.array([mx.nan]), mx.ones(1))).item()
    assert metal.swiglu(mx.zeros((2, 0)), mx.zeros((2, 0))).shape == (2, 0)


def check_embedding(metal: OpSet, group_size: int, bits: int) -> None:
    w = quantize(normal((7, 384), mx.bfloat16, seed=1), group_size, bits)
    ids = np.array([[6, 0, 3], [3, 1, 5]])
    assert_close(metal.embedding(mx.array(ids), w), oracle.embedding(ids, exact(w)))


@pytest.mark.parametrize(("bits", "group_size"), EACH_FORMAT)
def test_embedding_of_every_width(metal: OpSet, group_size: int, bits: int) -> None:
    check_embedding(metal, group_size, bits)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group_size", GROUPS)
def test_embedding_of_every_format(metal_checked: OpSet, group_size: int, bits: int) -> None:
    check_embedding(metal_checked, group_size, bits)


@pytest.mark.parametrize("count", SIZES)
def test_embedding_of_any_number_of_rows(metal: OpSet, count: int) -> None:
    w = quantize(normal((9, 32), mx.bfloat16, seed=1), 32, 3)
    ids = np.arange(count) * 7 % 9
    assert_close(metal.embedding(mx.array(ids), w), oracle.embedding(ids, exact(w)))


@pytest.mark.parametrize("dim", [32, 992, 1024, 1056])
def test_embedding_of_any_width_of_rows(metal: OpSet, dim: int) -> None:
    w = quantize(normal((3, dim), seed=1), 32, 6)
    ids = np.array([2, 0])
    assert_close(metal.embedding(mx.array(ids), w), oracle.embedding(ids, exact(w)))


def test_embedding_of_every_dtype(metal: OpSet, dtype: mx.Dtype) -> None:
    w = quantize(normal((9, 32), dtype, seed=1), 32)
    for ids in (np.arange(9, dtype=np.uint8), np.array(4)):
        y = metal.embedding(mx.array(ids), w)
        assert y.dtype == dtype
        assert_close(y, oracle.embedding(ids, exact(w)))


def check_rope(
    metal: OpSet, dtype: mx.Dtype, shape: tuple[int, ...], scaling: Yarn | None, traditional: bool
) -> None:
    x = normal(shape, dtype, seed=1)
    y = metal.rope(x, slice(7, 7 + shape[1]), 1e4, traditional, scaling)
    expected = oracle.rope(exact(x), np.arange(7, 7 + shape[1]), 1e4, traditional, scaling)
    assert_close(y, expected, position=7 + shape[1])


@pytest.mark.parametrize(
    ("shape", "dtype", "scaling", "traditional"),
    [
        (SHAPES[0], mx.float32, None, True),
        (SHAPES[1], mx.float16, YARN, True),
        (SHAPES[2], mx.float32, YARN, False),
        (SHAPES[3], mx.bfloat16, None, False),
    ],
)
def test_rope(
    metal: OpSet, dtype: mx.Dtype, shape: tuple[int, ...], scaling: Yarn | None, traditional: bool
) -> None:
    check_rope(metal, dtype, shape, scaling, traditional)


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("scaling", [None, YARN], ids=["plain", "yarn"])
@pytest.mark.parametrize("shape", SHAPES)
def test_rope_of_every_kind(
    metal_checked: OpSet,
    dtype: mx.Dtype,
    shape: tuple[int, ...],
    scaling: Yarn | None,
    traditional: bool,
) -> None:
    check_rope(metal_checked, dtype, shape, scaling, traditional)


@pytest.mark.parametrize(("length", "dtype"), EACH_SIZE)
def test_rope_of_texts_of_any_length(metal: OpSet, dtype: mx.Dtype, length: int) -> None:
    check_rope(metal, dtype, (1, length, 3, 6), None, traditional=False)


def test_rope_far_into_a_text_and_at_positions_of_each_row(metal: OpSet) -> None:
    x = normal((2, 3, 4, 16), seed=1)
    where = np.array([[0, 5, 1], [30, 131_071, 2]])
    y = metal.rope(x, mx.array(where), 1e4)
    assert_close(y, oracle.rope(exact(x), where, 1e4), position=131_071)
    assert metal.rope(mx.zeros((1, 0, 2, 8))).shape == (1, 0, 2, 8)


# Features of a head and rotated features: Qwen3.5's, all, all but two, and two.
PARTS = [(256, 64), (40, 40), (80, 78), (33, 2)]


@pytest.mark.parametrize(("dim", "dims"), PARTS, ids=str)
@pytest.mark.parametrize("traditional", [False, True])
def test_rope_of_a_part_of_each_head(
    metal: OpSet, dtype: mx.Dtype, dim: int, dims: int, traditional: bool
) -> None:
    x = normal((2, 3, 2, dim), dtype, seed=1)
    y = metal.rope(x, slice(7, 10), 1e4, traditional, YARN, dims)
    expected = oracle.rope(exact(x), np.arange(7, 10), 1e4, traditional, YARN, dims)
    assert_close(y, expected, position=10)
    assert mx.array_equal(y[..., dims:], x[..., dims:]).item()


@pytest.mark.parametrize(("dim", "dims"), PARTS, ids=str)
@pytest.mark.parametrize("normed", [True, False])
def test_norm_rope_of_a_part_of_each_head(metal: OpSet, dim: int, dims: int, normed: bool) -> None:
    check_norm_rope(metal, mx.bfloat16, (2, 3, 2, dim), normed=normed, dims=dims)


def test_rotated_features_are_pairs_of_the_head() -> None:
    for dims in (0, 5, 10):
        with pytest.raises(ValueError, match="dims: expected an even number from 2 to 8, got"):
            METAL.rope(mx.zeros((1, 1, 1, 8)), dims=dims)


def check_norm_rope(
    metal: OpSet,
    dtype: mx.Dtype,
    shape: tuple[int, ...],
    *,
    normed: bool = True,
    traditional: bool = False,
    scaling: Yarn | None = None,
    dims: int | None = None,
) -> None:
    x, weight = normal(shape, dtype, seed=1), normal(shape[-1:], dtype, seed=2)
    where = np.random.default_rng(3).integers(0, 40, size=shape[:2])
    y = norm_rope(
        *(metal, x, weight if normed else None, 1e-6, mx.array(where), 1e4, traditional),
        scaling=scaling,
        dims=dims,
    )
    if normed:
        x = rounded(oracle.rms_norm(exact(x), exact(weight), 1e-6), dtype)
    expected = oracle.rope(exact(x), where, 1e4, traditional, scaling, dims).swapaxes(1, 2)
    assert y.dtype == dtype
    assert_close(y, expected, position=40)


@pytest.mark.parametrize(("length", "dtype"), EACH_SIZE)
def test_norm_rope_of_texts_of_any_length(metal: OpSet, dtype: mx.Dtype, length: int) -> None:
    check_norm_rope(metal, dtype, (1, length, 3, 6))


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("scaling", [None, YARN], ids=["plain", "yarn"])
@pytest.mark.parametrize("shape", [*SHAPES, (2, 3, 3, 80)])
def test_norm_rope_of_every_kind(
    metal_checked: OpSet,
    dtype: mx.Dtype,
    shape: tuple[int, ...],
    scaling: Yarn | None,
    traditional: bool,
    normed: bool,
) -> None:
    check_norm_rope(
        metal_checked, dtype, shape, normed=normed, traditional=traditional, scaling=scaling
    )


def test_norm_rope_takes_the_positions_of_rope(metal: OpSet) -> None:
    x, weight = normal((2, 3, 4, 16), seed=1), normal((16,), seed=2)
    normal_x = oracle.rms_norm(exact(x), exact(weight), 0.5)
    for positions, where in (
        (slice(5, 8), [[5, 6, 7]]),
        (mx.array([[0, 1, 2], [7, 8, 9]]), [[0, 1, 2], [7, 8, 9]]),
        (mx.array([4, 1, 3]), [[4, 1, 3]]),
    ):
        y = norm_rope(metal, x, weight, 0.5, positions)
        assert_close(y, oracle.rope(normal_x, np.array(where)).swapaxes(1, 2), position=10)
    assert norm_rope(metal, x[:, :0], weight, 0.5).shape == (2, 4, 0, 16)


def test_a_replaced_rope_or_norm_drops_norm_rope() -> None:
    assert METAL.norm_rope is not None
    with pytest.warns(UserWarning, match="metal: rope replaced, so norm_rope"):
        ops = replace(METAL, rope=REFERENCE.rope)
    assert ops.norm_rope is None
    with pytest.warns(UserWarning, match="metal: rms_norm replaced, so norm_rope"):
        assert replace(METAL, rms_norm=REFERENCE.rms_norm).norm_rope is None
    assert replace(METAL, softmax=REFERENCE.softmax).norm_rope is METAL.norm_rope
