"""Products with quantized matrices, in decode steps and prompts, with and without experts."""

from itertools import cycle

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_kernels.metal import METAL
from tinyllm_kernels.metal.linear.matrix_product import group_units
from tinyllm_ops import MLX, OpSet, Phase, quantize
from tinyllm_ops.testing import assert_close, exact, normal, oracle

SIZES = [1, 23, 31, 32, 33, 77, 127, 129, 1023, 1024, 1025]
BITS, GROUPS = [2, 3, 4, 5, 6, 8], [32, 64, 128]
EACH_FORMAT = list(zip(BITS, cycle(GROUPS), strict=False))
EXACT = {
    mx.float32: 2e-6,
    mx.float16: 1e-3,
    mx.bfloat16: 5e-3,
}  # largest norm of the error / norm of the result, as for the CPU kernels (issue 4)


def check(
    metal: OpSet,
    tokens: int,
    outputs: int,
    inputs: int,
    dtype: mx.Dtype,
    group_size: int = 64,
    bits: int = 4,
) -> None:
    """Compare a random product with the oracle, by `TOLERANCE` and by the norm of the error."""
    x = normal((tokens, inputs), dtype, seed=1)
    w = quantize(normal((outputs, inputs), dtype, seed=2), group_size, bits)
    y, expected = metal.linear(x, w), oracle.linear(exact(x), exact(w))
    assert y.dtype == dtype
    assert_close(y, expected)
    assert np.linalg.norm(exact(y) - expected) < EXACT[dtype] * np.linalg.norm(expected)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 8])
def test_a_few_tokens(metal: OpSet, tokens: int) -> None:
    check(metal, tokens, 23, 128, mx.bfloat16)


@pytest.mark.parametrize("tokens", [9, *SIZES[1:]])
def test_many_tokens(metal: OpSet, tokens: int) -> None:
    check(metal, tokens, 23, 128, mx.bfloat16)


@pytest.mark.parametrize("outputs", SIZES)
@pytest.mark.parametrize("tokens", [1, 33])
def test_any_number_of_outputs(metal: OpSet, tokens: int, outputs: int) -> None:
    check(metal, tokens, outputs, 64, mx.bfloat16, group_size=32)


@pytest.mark.parametrize("inputs", [32, 992, 1024, 1056, 2112])
@pytest.mark.parametrize("tokens", [1, 9])
def test_any_number_of_inputs(metal: OpSet, tokens: int, inputs: int) -> None:
    check(metal, tokens, 5, inputs, mx.bfloat16, group_size=32)


@pytest.mark.parametrize(("bits", "group_size"), EACH_FORMAT)
@pytest.mark.parametrize("tokens", [1, 9])
def test_every_width(metal: OpSet, tokens: int, group_size: int, bits: int) -> None:
    check(metal, tokens, 9, 256, mx.bfloat16, group_size=group_size, bits=bits)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group_size", GROUPS)
@pytest.mark.parametrize("tokens", [1, 9])
def test_every_format(metal_checked: OpSet, tokens: int, group_size: int, bits: int) -> None:
    check(metal_checked, tokens, 9, 256, mx.bfloat16, group_size=group_size, bits=bits)


@pytest.mark.parametrize("tokens", [1, 8, 9])
def test_every_dtype(metal: OpSet, dtype: mx.Dtype, tokens: int) -> None:
    check(metal, tokens, 9, 512, dtype)


def test_more_columns_than_eight_simdgroups_read_at_once(metal: OpSet) -> None:
    check(metal, 1, 5, 9 * 1024 + 64, mx.bfloat16)


def test_a_short_prompt_has_a_threadgroup_for_each_split_of_its_columns() -> None:
    assert group_units(tokens=9, outputs=1024, inputs=1024) == 8  # four splits of 256 columns
    assert group_units(tokens=9, outputs=1024, inputs=320) == 10  # too few columns for two splits
    assert group_units(tokens=9, outputs=1024, inputs=4096) == 32  # four splits, not sixteen
    assert group_units(tokens=512, outputs=1024, inputs=1024) == 32  # 512 tiles are enough


# 65 tokens and 1,400 outputs are 132 tiles, whose threadgroups add the splits themselves.
@pytest.mark.parametrize(
    ("tokens", "outputs", "phase"),
    [
        *((tokens, 9, phase) for tokens in (1, 12, 37) for phase in ("prefill", "decode")),
        pytest.param(65, 1400, "prefill", marks=pytest.mark.exhaustive),
        pytest.param(65, 1400, "decode", marks=pytest.mark.exhaustive),
    ],
)
def test_a_token_has_the_same_bits_in_any_batch_and_chunk(
    metal_host: None, tokens: int, outputs: int, phase: Phase
) -> None:
    x = normal((tokens, 544), mx.bfloat16, seed=1)
    w = quantize(normal((outputs, 544), mx.bfloat16, seed=2), 32)
    last = METAL.linear(x[-1:], w, phase=phase)
    for rows in (x[-2:], x, x[None], x[:, None]):
        y = METAL.linear(rows, w, phase=phase).reshape(-1, outputs)
        assert mx.array_equal(y[-1:], last)


def test_the_shape_chooses_the_phase_unless_it_is_given(metal_host: None) -> None:
    w = quantize(normal((9, 544), mx.bfloat16, seed=2), 32)
    shapes: list[tuple[tuple[int, ...], Phase]] = [
        *(((12, 1), "decode"), ((8,), "decode"), ((), "decode")),
        *(((1, 12), "prefill"), ((9,), "prefill"), ((1, 2), "prefill")),
    ]
    for shape, phase in shapes:
        x = normal((*shape, 544), mx.bfloat16, seed=1)
        assert mx.array_equal(METAL.linear(x, w), METAL.linear(x, w, phase=phase))


def test_scales_of_another_dtype_than_x(metal: OpSet, dtype: mx.Dtype) -> None:
    w = quantize(normal((9, 64), mx.float16, seed=1))
    for tokens in (1, 9):
        x = normal((tokens, 64), dtype, seed=2)
        assert_close(metal.linear(x, w), oracle.linear(exact(x), exact(w)))


def test_views_of_larger_arrays_and_a_bias(metal: OpSet) -> None:
    w = quantize(normal((64, 128), seed=1), 32, 4)[8:40:3]
    x, bias = normal((2, 5, 256), seed=2)[:, ::2, ::2], normal((22,), seed=3)[::2]
    assert_close(metal.linear(x, w, bias), oracle.linear(exact(x), exact(w), exact(bias)))


@pytest.mark.parametrize("tokens", [1, 5, 9, 37])
def test_a_residual_and_a_bias_are_added(metal: OpSet, tokens: int) -> None:
    w = quantize(normal((33, 544), seed=2), 32)  # a prompt sums in two splits
    x, bias = normal((tokens, 544), seed=1), normal((33,), seed=3)
    residual = normal((33, tokens), seed=4).T
    expected = oracle.linear(exact(x), exact(w))
    assert_close(metal.linear(x, w, bias), expected + exact(bias))
    assert_close(metal.linear(x, w, None, residual), exact(residual) + expected)
    assert_close(metal.linear(x, w, bias, residual), exact(residual) + expected + exact(bias))


@pytest.mark.parametrize("shape", [(3, 1), (1, 12), (2, 3)], ids=str)
@pytest.mark.parametrize("phase", [None, "prefill", "decode"])
def test_a_residual_and_a_bias_of_each_phase(
    metal_checked: OpSet, dtype: mx.Dtype, shape: tuple[int, ...], phase: Phase | None
) -> None:
    w, bias = quantize(normal((24, 96), dtype, seed=2), 32), normal((24,), dtype, seed=3)
    x, residual = normal((*shape, 96), dtype, seed=1), normal((*shape, 24), dtype, seed=4)
    y = metal_checked.linear(x, w, bias, residual, phase=phase)
    assert y.shape == residual.shape
    expected = exact(residual) + oracle.linear(exact(x), exact(w), exact(bias))
    assert_close(y, expected)


def test_nan_reaches_its_own_token_alone(metal: OpSet) -> None:
    w = quantize(normal((30, 64), seed=2))
    for tokens in (5, 12):
        x = normal((tokens, 64), seed=1)
        x[3, 17] = mx.nan
        y = metal.linear(x, w)
        assert mx.isnan(y[3]).all().item()
        assert mx.isfinite(y[:3]).all().item()
        assert mx.isfinite(y[4:]).all().item()


def test_mlx_multiplies_other_weights() -> None:
    # Outside of metalhost: on Linux a Metal kernel would fail.
    x, w, residual = normal((3, 64), seed=1), normal((9, 64), seed=2), normal((3, 9), seed=3)
    for weight in (w, quantize(w, 32, 4, "mxfp4")):
        for inputs in ((x, weight), (x, weight, None, residual)):
            assert mx.array_equal(METAL.linear(*inputs), MLX.linear(*inputs))
    assert METAL.linear(mx.zeros((0, 64)), quantize(w)).shape == (0, 9)


@pytest.mark.parametrize("experts", [[0], [2, 2, 2], [0, 1, 2, 3, 4, 4], [3, 0, 3]])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_experts_multiply_their_own_rows(
    metal: OpSet, dtype: mx.Dtype, experts: list[int], phase: Phase
) -> None:
    x, w = normal((len(experts), 64), dtype, seed=1), normal((5, 27, 64), dtype, seed=2)
    weight = quantize(w, 32, 4)
    y = metal.expert_linear(x, weight, mx.array(experts), phase=phase)
    assert y.dtype == dtype
    assert_close(y, oracle.expert_linear(exact(x), exact(weight), np.array(experts)))


@pytest.mark.parametrize("outputs", SIZES)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_experts_of_any_number_of_outputs(metal: OpSet, outputs: int, phase: Phase) -> None:
    x, w = normal((2, 96), mx.bfloat16, seed=1), normal((3, outputs, 96), mx.bfloat16, seed=2)
    weight, experts = quantize(w, 32, 5), np.array([2, 1])
    y = metal.expert_linear(x, weight, mx.array(experts), phase=phase)
    assert_close(y, oracle.expert_linear(exact(x), exact(weight), experts))


# At 1,056 inputs only some lanes of a simdgroup have a second unit.
@pytest.mark.parametrize(("rows", "inputs"), [(23, 32), (31, 992), (32, 1024), (33, 1056)])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_experts_of_any_number_of_rows(metal: OpSet, rows: int, inputs: int, phase: Phase) -> None:
    x, w = normal((rows, inputs), seed=1), normal((3, 5, inputs), seed=2)
    weight, experts = quantize(w, 32, 3), np.sort(np.arange(rows) % 3)
    y = metal.expert_linear(x, weight, mx.array(experts), phase=phase)
    assert_close(y, oracle.expert_linear(exact(x), exact(weight), experts))


def test_a_prefill_chunk_of_experts_has_the_bits_of_a_longer_chunk(metal: OpSet) -> None:
    x, w = normal((67, 96), mx.bfloat16, seed=1), normal((5, 40, 96), mx.bfloat16, seed=2)
    weight, experts = quantize(w, 32, 4), mx.array(sorted(n % 5 for n in range(67)))
    whole = metal.expert_linear(x, weight, experts, phase="prefill")
    for rows in (slice(0, 1), slice(12, 16), slice(30, 31), slice(31, 67)):
        chunk = metal.expert_linear(x[rows], weight, experts[rows], phase="prefill")
        assert mx.array_equal(chunk, whole[rows])


def test_mlx_multiplies_other_experts() -> None:
    x, w, experts = normal((5, 64), seed=1), normal((2, 9, 64), seed=2), mx.zeros(5, mx.int32)
    for weight in (w, quantize(w, 32, 4, "mxfp4")):
        y = METAL.expert_linear(x, weight, experts)
        assert mx.array_equal(y, MLX.expert_linear(x, weight, experts))
    assert METAL.expert_linear(x[:0], quantize(w), experts[:0]).shape == (0, 9)
