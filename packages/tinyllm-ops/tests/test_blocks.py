from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import OpSet
from tinyllm_ops.testing import assert_close, exact, normal
from tinyllm_ops.testing.blocks import (
    attention_block,
    attention_block_oracle,
    attention_inputs_oracle,
    mlp_block,
    mlp_block_oracle,
    moe_block,
    moe_block_oracle,
)


@pytest.mark.parametrize("bits", [None, 4])
def test_an_mlp_from_norm_to_residual(ops: OpSet, dtype: mx.Dtype, bits: int | None) -> None:
    block = mlp_block(64, 96, dtype, bits)
    x = normal((2, 5, 64), dtype, seed=1)
    assert_close(ops.mlp_block(x, block), mlp_block_oracle(exact(x), block))


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("lead", [(2, 5), (3, 1), (4,), (), (0, 1)], ids=str)
@pytest.mark.parametrize("changes", [{}, {"norm": None, "norm_topk_prob": False}], ids=str)
def test_experts_from_norm_to_residual(
    ops: OpSet,
    dtype: mx.Dtype,
    changes: dict[str, object],
    lead: tuple[int, ...],
    bits: int | None,
) -> None:
    block = replace(moe_block(64, 96, 6, 2, dtype, bits), **changes)
    x = normal((*lead, 64), dtype, seed=5)
    assert_close(ops.moe_block(x, block), moe_block_oracle(exact(x), block))


@pytest.mark.parametrize("kind", [{"biased": True}, {"normed": True}], ids=str)
def test_attention_from_norm_to_residual(
    ops: OpSet, dtype: mx.Dtype, kind: dict[str, bool]
) -> None:
    block = attention_block(48, 6, 2, 10, dtype, **kind)
    x = normal((2, 7, 48), dtype, seed=2)
    keys, values = (mx.zeros((2, 2, 9, 10), dtype) for _ in range(2))
    first, keys, values = ops.attention_block(x[:, :4], block, keys, values, 0)
    last, keys, values = ops.attention_block(x[:, 4:], block, keys, values, 4)
    assert_close(mx.concatenate([first, last], axis=1), attention_block_oracle(exact(x), block))
    _, k, v = attention_inputs_oracle(exact(x), block, np.arange(7))
    assert_close(keys[:, :, :7], k)
    assert_close(values[:, :, :7], v)


def test_halves_that_add_no_residual_sum_up_with_one_that_does(ops: OpSet, dtype: mx.Dtype) -> None:
    x = normal((2, 4, 48), dtype, seed=4)
    mlp = replace(mlp_block(48, 96, dtype), residual=False)
    assert_close(ops.mlp_block(x, mlp), mlp_block_oracle(exact(x), mlp))
    attention = replace(attention_block(48, 6, 2, 10, dtype, biased=True), residual=False)
    expected = attention_block_oracle(exact(x), attention)
    keys, values = (mx.zeros((2, 2, 9, 10), dtype) for _ in range(2))
    assert_close(ops.attention_block(x, attention, keys, values, 0)[0], expected)
    q, k, v = ops.attention_inputs(x, attention, slice(0, 4))
    heads = ops.attention(q, k, v, None, "causal")
    assert_close(ops.attention_output(x, heads, attention), expected)


def test_preparing_weights_changes_nothing(ops: OpSet) -> None:
    block = mlp_block(64, 96, mx.float32, 4)
    x = normal((3, 64), seed=3)
    before = ops.mlp_block(x, block)
    weights = {"gate": block.gate, "up": block.up, "down": block.down}
    ops.prepare(weights)
    assert mx.array_equal(before, ops.mlp_block(x, replace(block, **weights)))
