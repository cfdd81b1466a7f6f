from dataclasses import replace
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import OpSet, Rotary, Yarn
from tinyllm_ops.testing import assert_close, exact, normal
from tinyllm_ops.testing.blocks import (
    attention_block,
    attention_block_oracle,
    attention_inputs_oracle,
    mlp_block,
    mlp_block_oracle,
)


@pytest.mark.parametrize("bits", [None, 3, 4, 8])
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 9, 33])
def test_an_mlp_is_one_step_from_norm_to_residual(
    ops: OpSet, dtype: mx.Dtype, rows: int, bits: int | None
) -> None:
    block = mlp_block(128, 384, dtype, bits)
    x = normal((1, rows, 128), dtype, seed=1)
    y = ops.mlp_block(x, block)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    assert_close(y, mlp_block_oracle(exact(x), block))


def test_an_mlp_of_inconvenient_sizes(ops: OpSet, dtype: mx.Dtype) -> None:
    block = mlp_block(37, 91, dtype)
    for lead in ((1,), (3,), (2, 7), ()):
        x = normal((*lead, 37), dtype, seed=2)
        assert_close(ops.mlp_block(x, block), mlp_block_oracle(exact(x), block))
    assert ops.mlp_block(mx.zeros((0, 37), dtype), block).shape == (0, 37)


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("kind", [{"biased": True}, {"normed": True}], ids=str)
@pytest.mark.parametrize("edges", [(0, 11), (0, 1, 2, 11), (0, 10, 11)])
def test_attention_is_one_step_from_norm_to_residual(
    ops: OpSet, dtype: mx.Dtype, kind: dict[str, bool], bits: int | None, edges: tuple[int, ...]
) -> None:
    block = attention_block(128, 6, 2, 32, dtype, bits=bits, **kind)
    x = normal((2, 11, 128), dtype, seed=3)
    keys, values = (mx.zeros((2, 2, 16, 32), dtype) for _ in range(2))
    parts = []
    for first, last in pairwise(edges):
        y, keys, values = ops.attention_block(x[:, first:last], block, keys, values, first)
        parts.append(y)
    assert_close(mx.concatenate(parts, axis=1), attention_block_oracle(exact(x), block))
    _, k, v = attention_inputs_oracle(exact(x), block, np.arange(11))
    assert_close(keys[:, :, :11], k)
    assert_close(values[:, :, :11], v)
    assert (keys[:, :, 11:] == 0).all().item()


@pytest.mark.parametrize("rows", [1, 5])
def test_halves_that_add_no_residual(ops: OpSet, dtype: mx.Dtype, rows: int) -> None:
    x = normal((1, rows, 128), dtype, seed=8)
    mlp = replace(mlp_block(128, 384, dtype, 4), residual=False)
    assert_close(ops.mlp_block(x, mlp), mlp_block_oracle(exact(x), mlp))
    attention = replace(attention_block(128, 6, 2, 32, dtype, bits=4), residual=False)
    expected = attention_block_oracle(exact(x), attention)
    keys, values = (mx.zeros((1, 2, 16, 32), dtype) for _ in range(2))
    assert_close(ops.attention_block(x, attention, keys, values, 0)[0], expected)
    q, k, v = ops.attention_inputs(x, attention, slice(0, rows))
    heads = ops.attention(q, k, v, None, "causal")
    assert_close(ops.attention_output(x, heads, attention), expected)


@pytest.mark.parametrize("rotary", [Rotary(1e4, True), Rotary(1e6, scaling=Yarn(4.0, 64))], ids=str)
def test_inputs_of_attention_stand_where_they_are_told(
    ops: OpSet, dtype: mx.Dtype, rotary: Rotary
) -> None:
    block = attention_block(48, 3, 1, 20, dtype, normed=True, rotary=rotary)
    x = normal((2, 5, 48), dtype, seed=4)
    where = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 30]])
    made = ops.attention_inputs(x, block, mx.array(where))
    for part, expected in zip(made, attention_inputs_oracle(exact(x), block, where), strict=True):
        assert part.dtype == dtype
        assert_close(part, expected)


def test_keys_are_written_where_they_lie_unless_somebody_holds_them(ops: OpSet) -> None:
    block = attention_block(64, 4, 2, 32, mx.float32)
    x = normal((1, 1, 64), seed=5)
    keys, values = (mx.ones((1, 2, 8, 32)) for _ in range(2))
    mx.eval(x, keys, values)
    held = keys
    _, keys, values = ops.attention_block(x, block, keys, values, 0)
    mx.eval(keys, values)
    assert (held == 1).all().item()
    assert (keys[:, :, 1:] == 1).all().item()
    assert not (keys[:, :, 0] == 1).any().item()
    del held
    place = np.asarray(memoryview(keys)).ctypes.data
    _, keys, values = ops.attention_block(x, block, keys, values, 1)
    mx.eval(keys, values)
    assert np.asarray(memoryview(keys)).ctypes.data == place


def test_a_view_of_x_is_read_as_it_is(ops: OpSet, dtype: mx.Dtype) -> None:
    block = attention_block(48, 3, 1, 16, dtype, biased=True)
    wide = normal((2, 6, 96), dtype, seed=6)
    x = wide[:, 1:4, ::2]
    keys, values = (mx.zeros((2, 1, 8, 16), dtype) for _ in range(2))
    y, _, _ = ops.attention_block(x, block, keys, values, 0)
    assert_close(y, attention_block_oracle(exact(x), block))
    mlp = mlp_block(48, 64, dtype)
    assert_close(ops.mlp_block(x, mlp), mlp_block_oracle(exact(x), mlp))


@pytest.mark.parametrize("rows", [2, 3])
def test_rows_do_not_depend_on_the_rows_beside_them(ops: OpSet, dtype: mx.Dtype, rows: int) -> None:
    block = mlp_block(128, 256, dtype, 4)
    x = normal((rows, 128), dtype, seed=7)
    apart = mx.concatenate([ops.mlp_block(row[None], block) for row in x])
    assert mx.array_equal(ops.mlp_block(x, block), apart)


def test_preparing_weights_changes_nothing(ops: OpSet) -> None:
    block = mlp_block(1024, 6144, mx.bfloat16, 8)  # parts of some megabytes, which pages fit into
    x = normal((1, 1024), mx.bfloat16, seed=3)
    before = ops.mlp_block(x, block)
    weights = {"gate": block.gate, "up": block.up, "down": block.down}
    ops.prepare(weights)
    assert mx.array_equal(before, ops.mlp_block(x, replace(block, **weights)))
