from types import ModuleType

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_kernels import opset
from tinyllm_kernels.cpu.arguments import native_weight
from tinyllm_ops import OpSet, Phase, QuantizationMode, QuantizedTensor, quantize
from tinyllm_ops.testing import TOLERANCE, assert_close, exact, normal, oracle

AFFINE = [("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
FLOATS = [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]
ROWS = [1, 2, 3, 4, 5, 7, 33]  # a few, a tile, tiles and a rest
EXACT = {mx.float32: 2e-6, mx.float16: 1e-3, mx.bfloat16: 5e-3}  # limits of `error` (issue 4)


def error(y: mx.array, expected: np.ndarray) -> float:
    """Return the Frobenius norm of the difference over the norm of the expected result."""
    return float(np.linalg.norm(exact(y) - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), [(37, 11), (64, 24), (257, 51), (1, 1)])
def test_multiplies_dense_weights(
    ops: OpSet, dtype: mx.Dtype, rows: int, inputs: int, outputs: int
) -> None:
    x, w = normal((rows, inputs), dtype, seed=1), normal((outputs, inputs), dtype, seed=2)
    bias = normal((outputs,), dtype, seed=3)
    y = ops.linear(x, w, bias)
    assert y.dtype == dtype
    assert_close(y, oracle.linear(exact(x), exact(w), exact(bias)))


@pytest.mark.parametrize(("mode", "bits", "group"), AFFINE + FLOATS)
def test_multiplies_packed_weights_and_reads_their_rows(
    ops: OpSet, dtype: mx.Dtype, mode: QuantizationMode, bits: int, group: int
) -> None:
    for inputs in (384, 5 * group):  # whole vectors of every instruction set, and a remainder
        w = quantize(normal((45, inputs), dtype, seed=2), group, bits, mode)
        x = normal((34, inputs), dtype, seed=1)
        expected = oracle.linear(exact(x), exact(w))
        for rows in (1, 3, 4, 9, 34):  # up to 16 rows of a matrix are decode steps
            y = ops.linear(x[:rows], w)
            assert y.dtype == dtype
            assert_close(y, expected[:rows])
            assert error(y, expected[:rows]) < EXACT[dtype]
        ids = [44, 0, 17, 17]
        assert_close(ops.embedding(mx.array(ids), w), exact(w)[ids])


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize(("mode", "bits", "group"), [("affine", 4, 64), *FLOATS])
def test_groups_of_zeros_give_zeros(
    ops: OpSet, dtype: mx.Dtype, mode: QuantizationMode, bits: int, group: int, phase: Phase
) -> None:
    """MLX gives a group of zeros in mxfp4 the scale 1, 500 times that of the groups beside it."""
    dense = normal((64, 1024), dtype, seed=2) * 0.002
    dense[1], dense[2:, 32:512] = 0, 0
    x, w = normal((1, 34, 1024), dtype, seed=1), quantize(dense, group, bits, mode)
    y = ops.linear(x, w, phase=phase)
    assert_close(y, oracle.linear(exact(x), exact(w)))
    assert float(mx.abs(y[..., 1]).max()) < 1e-3 * float(mx.abs(y).max())


@pytest.mark.parametrize("mode", ["affine", "mxfp4", "nvfp4"])
def test_tiny_inputs_give_tiny_results(ops: OpSet, mode: QuantizationMode) -> None:
    x = (mx.abs(normal((1, 20, 256), mx.float32, seed=1)) * 1e-35).astype(mx.bfloat16)
    w = quantize(normal((32, 256), mx.bfloat16, seed=2), {"nvfp4": 16}.get(mode, 32), 4, mode)
    y, expected = ops.linear(x, w), oracle.linear(exact(x), exact(w))
    # Numbers below 4.8e-35 are zeros to the integer kernels.
    assert np.abs(exact(y) - expected).max() <= 1.01 * np.abs(expected).max()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("form", [None, 3, 4])
@pytest.mark.parametrize("lead", [(1, 1), (5, 1), (1, 37)])
def test_adds_a_residual(
    ops: OpSet, dtype: mx.Dtype, lead: tuple[int, int], form: int | None, biased: bool
) -> None:
    x, w = normal((*lead, 192), dtype, seed=1), normal((45, 192), dtype, seed=2)
    weight = w if form is None else quantize(w, 64, form)
    residual = normal((45, *lead[::-1]), dtype, seed=3).T  # its rows have gaps
    bias = normal((45,), dtype, seed=4) if biased else None
    expected = oracle.linear(exact(x), exact(weight), None if bias is None else exact(bias))
    assert_close(ops.linear(x, weight, bias, residual), expected + exact(residual))


@pytest.mark.parametrize("form", [None, 4, 8])
def test_a_row_has_the_same_result_alone_and_in_any_batch(
    ops: OpSet, dtype: mx.Dtype, form: int | None
) -> None:
    x, w = normal((513, 192), dtype, seed=1), normal((45, 192), dtype, seed=2)
    weight = w if form is None else quantize(w, 64, form)
    expected = oracle.linear(exact(x), exact(weight))
    for rows in (*range(1, 34), 511, 512, 513):
        assert_close(ops.linear(x[None, :rows], weight)[0], expected[:rows])
        if rows < 34:
            assert_close(ops.linear(x[:rows, None], weight)[:, 0], expected[:rows])


@pytest.mark.parametrize("inputs", [2048, 4096 + 64])
def test_a_long_row_is_multiplied_in_parts(ops: OpSet, dtype: mx.Dtype, inputs: int) -> None:
    x, w = normal((37, inputs), dtype, seed=1), quantize(normal((27, inputs), dtype, seed=2))
    expected = oracle.linear(exact(x), exact(w))
    assert_close(ops.linear(x[:5], w), expected[:5])  # decode steps
    assert_close(ops.linear(x[None], w)[0], expected)


def test_a_long_prompt_is_multiplied_in_parts(ops: OpSet, dtype: mx.Dtype) -> None:
    x, w = normal((1, 1100, 65), dtype, seed=1), normal((51, 65), dtype, seed=2)
    assert_close(ops.linear(x, w), oracle.linear(exact(x), exact(w)))


@pytest.mark.parametrize("form", [None, 4])
def test_tokens_that_exceed_a_cache_are_multiplied_in_ranges(
    ops: OpSet, dtype: mx.Dtype, form: int | None
) -> None:
    x, w = normal((1, 900, 1152), dtype, seed=1), normal((40, 1152), dtype, seed=2)
    weight = w if form is None else quantize(w, 64, form)
    assert_close(ops.linear(x, weight), oracle.linear(exact(x), exact(weight)))


def test_gate_and_up_of_two_formats_have_the_bits_of_any_chunk(
    native: ModuleType, dtype: mx.Dtype
) -> None:
    # These tokens exceed a cache. A matrix unit divides them by the format of a matrix.
    width, hidden, count = 2048, 512, 320
    gate, up = (normal((hidden, width), dtype, seed=seed) / width**0.5 for seed in (1, 2))
    down = normal((width, hidden), dtype, seed=3)
    weights = [native_weight(w) for w in (gate, quantize(up), down)]
    norm = (mx.ones(width, dtype), 1e-6)
    handle = native.mlp_handle(norm, *weights, adds_residual=True)
    x = normal((1, count, width), dtype, seed=4)
    long = native.feed_forward(x, handle, "prefill")
    for first, last in ((0, 1), (7, 40), (300, count)):
        chunk = native.feed_forward(x[:, first:last], handle, "prefill")
        assert mx.array_equal(chunk, long[:, first:last])


@given(
    lead=st.lists(st.integers(0, 4), max_size=3),
    inputs=st.integers(0, 90),
    outputs=st.integers(0, 70),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=60)
def test_takes_any_shape(lead: list[int], inputs: int, outputs: int, dtype: mx.Dtype) -> None:
    ops = opset("cpu")
    x, w = normal((*lead, inputs), dtype, seed=1), normal((outputs, inputs), dtype, seed=2)
    bias = normal((outputs,), dtype, seed=3)
    assert_close(ops.linear(x, w, bias), oracle.linear(exact(x), exact(w), exact(bias)))


def test_takes_inputs_that_do_not_lie_side_by_side(ops: OpSet, dtype: mx.Dtype) -> None:
    wide, tall = normal((9, 200), dtype, seed=1), normal((64, 40), dtype, seed=2)
    x, w = wide[::2, 3:131:2], tall.T[5:25]
    bias = normal((40,), dtype, seed=3)[::2]
    assert_close(ops.linear(x, w, bias), oracle.linear(exact(x), exact(w), exact(bias)))
    turned = wide[:, :64].reshape(3, 3, 64).swapaxes(0, 1)
    assert_close(ops.linear(turned, w), oracle.linear(exact(turned), exact(w)))


def test_takes_packed_weights_out_of_a_larger_array(ops: OpSet, dtype: mx.Dtype) -> None:
    whole = quantize(normal((64, 128), dtype, seed=1), 32, 4)
    w = whole[8:40:3]
    wide = normal((40, 300), dtype, seed=2)
    for x in (wide[3:5, 7:135], wide[1::2, 299:43:-2]):  # 2 decode steps, a prompt of 20 tokens
        assert_close(ops.linear(x, w), oracle.linear(exact(x), exact(w)))


def test_reads_scales_of_another_dtype_than_x(ops: OpSet, dtype: mx.Dtype) -> None:
    w = quantize(normal((24, 128), mx.bfloat16, seed=1))
    x = normal((2, 128), dtype, seed=2)
    assert_close(ops.linear(x, w), oracle.linear(exact(x), exact(w)))


@pytest.mark.parametrize("bad", [mx.inf, -mx.inf, mx.nan])
@pytest.mark.parametrize("form", [None, 3, 4, 8])
def test_nan_and_inf_reach_only_their_own_row(
    ops: OpSet, dtype: mx.Dtype, bad: float, form: int | None
) -> None:
    x, w = normal((7, 128), dtype, seed=1), normal((30, 128), dtype, seed=2)
    weight = w if form is None else quantize(w, 64, form)
    finite = oracle.linear(exact(x), exact(weight))
    x[4, 17] = bad
    for y in (ops.linear(x[:, None], weight)[:, 0], ops.linear(x[None], weight)[0]):
        for others in (slice(0, 4), slice(5, 7)):
            assert_close(y[others], finite[others])
        spoiled = mx.isnan(y[4]) if np.isnan(bad) else ~mx.isfinite(y[4])
        assert spoiled.all().item()


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize(
    ("mode", "bits", "group", "codes"),
    [("mxfp8", 8, 32, 256), ("mxfp4", 4, 32, 16), ("nvfp4", 4, 16, 16)],
)
def test_every_code_of_the_float_formats_is_read(
    ops: OpSet,
    dtype: mx.Dtype,
    phase: Phase,
    mode: QuantizationMode,
    bits: int,
    group: int,
    codes: int,
) -> None:
    """The numbers of a matrix are its products with unit vectors."""
    every = np.resize(np.arange(codes, dtype=np.uint8), (16, 256))
    if mode == "mxfp8":
        every[:15, [0x7F, 0xFF]] = 0  # NaN, which spoils each sum of its row: the last row alone
    stream = every if bits == 8 else every[:, ::2] | every[:, 1::2] << 4
    packed = mx.array(np.ascontiguousarray(stream).view(np.uint32))
    w = QuantizedTensor(packed, mx.full((16, 256 // group), 130, mx.uint8), None, group, bits, mode)
    eye = mx.eye(256, dtype=dtype)
    x = eye[:, None] if phase == "decode" else eye[None]
    got = exact(ops.linear(x, w, phase=phase)).reshape(256, 16).T
    expected = exact(w)
    if mode == "mxfp8":
        assert np.isnan(got[15]).all()
        got, expected = got[:15], expected[:15]
    # Integers that stand for codes are larger than the codes by 12: see matmul/integer/codes.h.
    rtol, atol = (0, 0) if dtype == mx.float32 else (2**-10, 2**-24)
    np.testing.assert_allclose(got, expected, rtol, atol)


@pytest.mark.parametrize("experts", [[0], [2, 2, 2], [0, 1, 2, 3, 4], [1] * 40 + [3] * 2])
@pytest.mark.parametrize("bits", [None, 4])
def test_experts_multiply_their_own_rows(
    ops: OpSet, dtype: mx.Dtype, experts: list[int], bits: int | None
) -> None:
    x, w = normal((len(experts), 64), dtype, seed=1), normal((5, 27, 64), dtype, seed=2)
    weight = w if bits is None else quantize(w, 32, bits)
    y = ops.expert_linear(x, weight, mx.array(experts))
    assert_close(y, oracle.expert_linear(exact(x), exact(weight), np.array(experts)))
