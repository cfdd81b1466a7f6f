import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinyllm_ops import OpSet, QuantizationMode, QuantizedTensor, dequantize, quantize
from tinyllm_ops.quantization.tensor import pack, unpack
from tinyllm_ops.testing import assert_close, exact, normal, oracle, rounded

AFFINE = [("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
FLOAT = [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]
FORMATS = pytest.mark.parametrize(("mode", "bits", "group"), AFFINE + FLOAT)


def awkward_weights(dtype: mx.Dtype) -> mx.array:
    """Return rows that are hard to quantize: constant, one-sided, integer, tiny, huge, ties."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(16, 384)) * np.logspace(-4, 4, 16)[:, None]
    integers = rng.integers(-7, 8, (2, 384)) / np.array([[1.0], [4.0]])
    constant = np.zeros((4, 384)) + np.array([[0.0], [1.0], [-2.5], [1e-30]])
    one_sided = abs(rng.normal(size=(2, 384))) * np.array([[1.0], [-1.0]])
    return rounded(np.concatenate([rows, integers, constant, one_sided]), dtype)


@FORMATS
def test_quantize_computes_the_codes_of_mx_quantize(
    ops: OpSet, device: mx.Device, dtype: mx.Dtype, mode: QuantizationMode, bits: int, group: int
) -> None:
    # On a GPU a code may differ by one. The limit for every device is in
    # `test_quantized_weights_lie_within_half_a_step_of_the_dense`.
    if device.type == mx.gpu:
        pytest.skip("code for code on the CPU alone: a GPU may round a quotient the other way")
    w = awkward_weights(dtype)
    q = ops.quantize(w, group, bits, mode)
    source = w if mode == "affine" else w.astype(mx.float32)  # see `tinyllm_ops.quantize`
    theirs = mx.quantize(source, group_size=group, bits=bits, mode=mode)
    assert len(q.arrays) == len(theirs)
    for ours, part in zip(q.arrays, theirs, strict=True):
        assert ours.dtype == part.dtype
        assert mx.array_equal(ours, part)


@FORMATS
def test_dequantize_gives_the_numbers_of_mx_dequantize(
    device: mx.Device, mode: QuantizationMode, bits: int, group: int
) -> None:
    w = awkward_weights(mx.float32)
    theirs = mx.quantize(w, group_size=group, bits=bits, mode=mode)
    biases = theirs[2] if mode == "affine" else None
    ours = dequantize(QuantizedTensor(theirs[0], theirs[1], biases, group, bits, mode))
    wanted = mx.dequantize(*theirs, group_size=group, bits=bits, mode=mode, dtype=mx.float32)
    for row, other in zip(ours, wanted, strict=True):  # tolerances are relative to each row
        assert_close(row, exact(other))


@FORMATS
def test_dequantize_reads_the_format_from_its_definition(
    device: mx.Device, dtype: mx.Dtype, mode: QuantizationMode, bits: int, group: int
) -> None:
    q = quantize(awkward_weights(dtype)[:20], group, bits, mode)
    w = dequantize(q, dtype)
    assert w.dtype == dtype
    for row, wanted in zip(w, exact(q), strict=True):
        assert_close(row, wanted)


@FORMATS
def test_quantized_weights_lie_within_half_a_step_of_the_dense(
    ops: OpSet, mode: QuantizationMode, bits: int, group: int
) -> None:
    w = normal((8, 384), seed=1)
    groups = exact(w).reshape(8, -1, group)
    # Half a step is the rounding of a code. The limit is a whole step: the affine grid is shifted
    # by up to half a step so that it contains zero, and the rounded scale of a float mode may clip.
    if mode == "affine":
        step = (groups.max(-1) - groups.min(-1)) / (2**bits - 1)
    else:  # the spacing of codes near the largest number, for 3 mantissa bits or 1
        step = abs(groups).max(-1) * (2 / 16 if bits == 8 else 2 / 6)
    error = abs(exact(ops.quantize(w, group, bits, mode)).reshape(groups.shape) - groups)
    assert (error <= step[..., None] * 1.0001).all()


@pytest.mark.parametrize("lead", [(), (0,), (3,), (2, 3), (2, 0), (2, 1, 3)])
@pytest.mark.parametrize(("mode", "bits", "group"), [("affine", 3, 64), *FLOAT])
def test_takes_any_leading_axes(
    ops: OpSet,
    dtype: mx.Dtype,
    lead: tuple[int, ...],
    mode: QuantizationMode,
    bits: int,
    group: int,
) -> None:
    w = normal((*lead, 128), dtype, seed=1)
    q = ops.quantize(w, group, bits, mode)
    assert q.shape == w.shape
    assert q.packed.shape == (*lead, 128 * bits // 32)
    assert q.scales.shape == (*lead, 128 // group)
    assert_close(dequantize(q, dtype), exact(q))


@given(
    bits=st.sampled_from([2, 3, 4, 5, 6, 8]),
    lead=st.lists(st.integers(0, 3), max_size=2),
    blocks=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_pack_and_unpack_undo_each_other_and_agree_with_one_long_integer(
    bits: int, lead: list[int], blocks: int, seed: int
) -> None:
    codes = np.random.default_rng(seed).integers(0, 2**bits, (*lead, blocks * 32))
    packed = pack(mx.array(codes).astype(mx.uint32), bits)
    assert np.array_equal(np.array(packed), oracle.pack(codes, bits))
    assert np.array_equal(np.array(unpack(packed, bits)), codes)


def test_every_byte_of_mxfp8_is_its_number(device: mx.Device) -> None:
    codes = mx.arange(256).astype(mx.uint8).reshape(8, 32)
    q = QuantizedTensor(codes.view(mx.uint32), mx.full((8, 1), 127, mx.uint8), None, 32, 8, "mxfp8")
    numbers = [oracle.minifloat(byte, 4, 3) for byte in range(256)]
    assert np.array_equal(exact(dequantize(q)).reshape(-1), numbers, equal_nan=True)


@pytest.mark.parametrize("exponent", [1, 100, 126, 127, 128, 200, 250])
def test_a_scale_of_mxfp4_is_a_power_of_two(device: mx.Device, exponent: int) -> None:
    packed = mx.full((1, 4), 0x22222222, mx.uint32)  # code 2 is the number 1
    q = QuantizedTensor(packed, mx.full((1, 1), exponent, mx.uint8), None, 32, 4, "mxfp4")
    assert_close(dequantize(q), np.full((1, 32), math.ldexp(1, exponent - 127)))


@pytest.mark.parametrize("shape", [(16,), (1, 16), (31, 48)])
def test_groups_of_nvfp4_need_no_second_group(ops: OpSet, shape: tuple[int, ...]) -> None:
    w = normal(shape, mx.float32, seed=1)
    q = ops.quantize(w, 16, 4, "nvfp4")
    assert q.shape == shape
    expected = quantize(w, 16, 4, "nvfp4")
    assert np.array_equal(exact(dequantize(q)), exact(dequantize(expected)))


@pytest.mark.parametrize(
    ("shape", "group", "bits", "mode", "words"),
    [
        ((2, 64), 48, 4, "affine", r"group_size: expected one of \(32, 64, 128\), got 48"),
        ((2, 64), 64, 7, "affine", r"bits: expected one of \(2, 3, 4, 5, 6, 8\), got 7"),
        ((2, 64), 64, 4, "int4", r"mode: expected one of affine, mxfp4, mxfp8, nvfp4, got 'int4'"),
        ((2, 64), 64, 4, "mxfp4", r"mxfp4 means 4 bits in groups of 32, got 4 bits in .* of 64"),
        ((2, 96), 64, 4, "affine", r"w: expected a last axis in groups of 64, got .*96"),
        ((), 64, 4, "affine", r"w: expected a last axis in groups of 64, got shape \(\)"),
    ],
)
def test_refuses_formats_that_mlx_does_not_define(
    ops: OpSet,
    unchecked: None,
    shape: tuple[int, ...],
    group: int,
    bits: int,
    mode: str,
    words: str,
) -> None:
    with pytest.raises(ValueError, match=words):
        ops.quantize(mx.zeros(shape), group, bits, mode)  # type: ignore[arg-type] # "int4"
