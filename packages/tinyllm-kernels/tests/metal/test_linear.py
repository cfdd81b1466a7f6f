"""Products with quantized matrices: a few tokens at a time, and many."""

from dataclasses import replace
from itertools import cycle

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_kernels.metal import METAL
from tinyllm_kernels.metal.linear import add_linear
from tinyllm_kernels.metal.linear.matrix_product import group_units
from tinyllm_ops import MLX, OpSet, quantize
from tinyllm_ops.testing import assert_close, exact, normal, oracle
from tinyllm_ops.testing.blocks import attention_block, mlp_block, mlp_block_oracle

SIZES = [1, 23, 31, 32, 33, 77, 127, 129, 1023, 1024, 1025]
BITS, GROUPS = [2, 3, 4, 5, 6, 8], [32, 64, 128]
EACH_FORMAT = list(zip(BITS, cycle(GROUPS), strict=False))
EXACT = {mx.float32: 2e-6, mx.float16: 1e-3, mx.bfloat16: 5e-3}  # of issue 4, for the CPU's kernels


def check(
    metal: OpSet,
    tokens: int,
    outputs: int,
    inputs: int,
    dtype: mx.Dtype,
    group_size: int = 64,
    bits: int = 4,
) -> None:
    """A product of random numbers, by the table of tolerances and by the norm of its error."""
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


def test_columns_in_as_many_parts_as_simdgroups_and_more(metal: OpSet) -> None:
    check(metal, 1, 5, 9 * 1024 + 64, mx.bfloat16)


def test_a_prompt_that_fills_no_gpu_has_a_group_for_each_part_of_its_columns() -> None:
    assert group_units(tokens=9, outputs=1024, inputs=1024) == 8  # four parts of 256 columns
    assert group_units(tokens=9, outputs=1024, inputs=320) == 10  # too few for two
    assert group_units(tokens=9, outputs=1024, inputs=4096) == 32  # four parts, not sixteen
    assert group_units(tokens=512, outputs=1024, inputs=1024) == 32  # 512 tiles are enough


@pytest.mark.parametrize(("rows", "outputs"), [(1, 9), (12, 9), (37, 9), (65, 1400)])
def test_a_row_gets_the_same_bits_in_any_company(metal_host: None, rows: int, outputs: int) -> None:
    ops, dtype = METAL, mx.bfloat16
    x, w = normal((rows, 544), dtype, seed=1), quantize(normal((outputs, 544), dtype, seed=2), 32)
    last = x[-2:]
    decoded = ops.linear(x[:, None], w)[-1:]  # tokens of so many texts
    assert mx.array_equal(decoded, ops.linear(last[-1:, None], w))
    if rows > 1:
        prompt = ops.linear(x[None], w)[:, -2:]  # tokens of one text; in 135 tiles in the end
        assert mx.array_equal(prompt, ops.linear(last[None], w))


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
    w = quantize(normal((33, 544), seed=2), 32)  # in two parts, of prompts
    x, bias = normal((tokens, 544), seed=1), normal((33,), seed=3)
    residual = normal((33, tokens), seed=4).T
    expected = oracle.linear(exact(x), exact(w))
    assert_close(metal.linear(x, w, bias), expected + exact(bias))
    assert_close(add_linear(residual, x, w), exact(residual) + expected)
    assert_close(add_linear(residual, x, w, bias), exact(residual) + expected + exact(bias))


@pytest.mark.parametrize("shape", [(3, 1, 64), (1, 12, 64)], ids=str)
@pytest.mark.parametrize("residual", [True, False])
def test_halves_of_a_block(
    metal_checked: OpSet, dtype: mx.Dtype, shape: tuple[int, ...], residual: bool
) -> None:
    x = normal(shape, dtype, seed=1)
    mlp = replace(mlp_block(64, 96, dtype, bits=4), residual=residual)
    assert_close(metal_checked.mlp_block(x, mlp), mlp_block_oracle(exact(x), mlp))
    block = attention_block(64, 4, 2, 16, dtype, bits=4, biased=True)
    block = replace(block, residual=residual)
    heads = normal((shape[0], 4, shape[1], 16), dtype, seed=2)
    joined = exact(heads).swapaxes(1, 2).reshape(shape)
    assert block.o.bias is not None
    expected = oracle.linear(joined, exact(block.o.weight), exact(block.o.bias))
    expected = exact(x) + expected if residual else expected
    assert_close(metal_checked.attention_output(x, heads, block), expected)


def test_what_is_not_a_number_reaches_its_own_token_alone(metal: OpSet) -> None:
    w = quantize(normal((30, 64), seed=2))
    for tokens in (5, 12):
        x = normal((tokens, 64), seed=1)
        x[3, 17] = mx.nan
        y = metal.linear(x, w)
        assert mx.isnan(y[3]).all().item()
        assert mx.isfinite(y[:3]).all().item()
        assert mx.isfinite(y[4:]).all().item()


def test_other_weights_are_left_to_mlx() -> None:
    # No kernel of this package is made: on Linux MLX's would fail.
    x, w = normal((3, 64), seed=1), normal((9, 64), seed=2)
    for weight in (w, quantize(w, 32, 4, "mxfp4")):
        assert mx.array_equal(METAL.linear(x, weight), MLX.linear(x, weight))
        assert mx.array_equal(add_linear(x[:, :9], x, weight), x[:, :9] + MLX.linear(x, weight))
    assert METAL.linear(mx.zeros((0, 64)), quantize(w)).shape == (0, 9)


@pytest.mark.parametrize("experts", [[0], [2, 2, 2], [0, 1, 2, 3, 4, 4]])
def test_experts_multiply_their_own_rows(metal: OpSet, dtype: mx.Dtype, experts: list[int]) -> None:
    x, w = normal((len(experts), 64), dtype, seed=1), normal((5, 27, 64), dtype, seed=2)
    weight = quantize(w, 32, 4)
    y = metal.expert_linear(x, weight, mx.array(experts))
    assert_close(y, oracle.expert_linear(exact(x), exact(weight), np.array(experts)))


@pytest.mark.parametrize("outputs", SIZES)
def test_experts_of_any_number_of_outputs(metal: OpSet, outputs: int) -> None:
    x, w = normal((2, 96), mx.bfloat16, seed=1), normal((3, outputs, 96), mx.bfloat16, seed=2)
    weight, experts = quantize(w, 32, 5), np.array([2, 1])
    y = metal.expert_linear(x, weight, mx.array(experts))
    assert_close(y, oracle.expert_linear(exact(x), exact(weight), experts))


# The last width has a part of a simdgroup's second sweep.
@pytest.mark.parametrize(("rows", "inputs"), [(23, 32), (31, 992), (32, 1024), (33, 1056)])
def test_experts_of_any_number_of_rows(metal: OpSet, rows: int, inputs: int) -> None:
    x, w = normal((rows, inputs), seed=1), normal((3, 5, inputs), seed=2)
    weight, experts = quantize(w, 32, 3), np.arange(rows) % 3
    y = metal.expert_linear(x, weight, mx.array(experts))
    assert_close(y, oracle.expert_linear(exact(x), exact(weight), experts))


def test_a_prompt_of_experts_and_dense_ones_are_left_to_mlx() -> None:
    x, w, experts = normal((65, 64), seed=1), normal((2, 9, 64), seed=2), mx.zeros(65, mx.int32)
    for weight in (w, quantize(w)):
        assert mx.array_equal(
            METAL.expert_linear(x, weight, experts), MLX.expert_linear(x, weight, experts)
        )
