"""A mixture of experts as one step: routed, computed and put together."""

from dataclasses import replace

import mlx.core as mx
import pytest
from tinyllm_ops import MoeBlock, OpSet
from tinyllm_ops.testing import assert_close, exact, normal
from tinyllm_ops.testing.blocks import moe_block, moe_block_oracle

LEADS = [(1, 1), (5, 1), (1, 47), (2, 9), ()]


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("lead", LEADS, ids=str)
def test_experts_are_one_step_from_norm_to_residual(
    ops: OpSet, dtype: mx.Dtype, lead: tuple[int, ...], bits: int | None
) -> None:
    block = moe_block(128, 96, 8, 3, dtype, bits)
    x = normal((*lead, 128), dtype, seed=1)
    y = ops.moe_block(x, block)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    assert_close(y, moe_block_oracle(exact(x), block))


@pytest.mark.parametrize("changes", [{"norm": None}, {"residual": False}], ids=str)
@pytest.mark.parametrize("rows", [1, 4])
def test_experts_alone(ops: OpSet, dtype: mx.Dtype, rows: int, changes: dict[str, object]) -> None:
    block = replace(moe_block(64, 96, 5, 2, dtype, norm_topk_prob=False), **changes)
    x = normal((rows, 1, 64), dtype, seed=2)
    assert_close(ops.moe_block(x, block), moe_block_oracle(exact(x), block))


@pytest.mark.parametrize("chosen", [1, 7])
def test_experts_of_inconvenient_sizes(ops: OpSet, dtype: mx.Dtype, chosen: int) -> None:
    block = moe_block(37, 91, 7, chosen, dtype)
    for lead in ((1, 1), (1, 6), (0, 1)):
        x = normal((*lead, 37), dtype, seed=3)
        assert_close(ops.moe_block(x, block), moe_block_oracle(exact(x), block))


@pytest.mark.parametrize("bits", [None, 4])
def test_a_decoded_token_gets_the_same_bits_in_any_company(
    ops: OpSet, dtype: mx.Dtype, bits: int | None
) -> None:
    block = moe_block(128, 96, 8, 2, dtype, bits)
    x = normal((9, 1, 128), dtype, seed=4)
    apart = mx.concatenate([ops.moe_block(row[None], block) for row in x])
    assert mx.array_equal(ops.moe_block(x, block), apart)


def test_of_equal_shares_the_first_expert_is_chosen(ops: OpSet) -> None:
    block = moe_block(64, 96, 6, 2, mx.float32)
    alike = replace(block, router=mx.zeros((6, 64)))
    first = replace(
        block,
        router=mx.zeros((2, 64)),
        **{name: getattr(block, name)[:2] for name in ("gate", "up", "down")},
    )
    x = normal((3, 1, 64), seed=5)
    assert mx.array_equal(ops.moe_block(x, alike), ops.moe_block(x, first))


def test_what_is_no_number_stays_in_its_row(ops: OpSet) -> None:
    block = moe_block(64, 96, 6, 2, mx.float32)
    x = normal((4, 1, 64), seed=6)
    x[1, 0, 5] = mx.nan
    y = ops.moe_block(x, block)
    assert mx.isnan(y).all(axis=(1, 2)).tolist() == [False, True, False, False]
    fine = mx.array([0, 2, 3])
    assert mx.array_equal(y[fine], ops.moe_block(x[fine], block))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", [mx.zeros((1, 1, 60)), mx.zeros((1, 1, 64), mx.float16)])
def test_an_input_that_does_not_fit_is_refused(ops: OpSet, wrong: mx.array) -> None:
    block: MoeBlock = replace(moe_block(64, 96, 4, 2, mx.float32), norm=None)
    with pytest.raises(ValueError, match="expected"):
        ops.moe_block(wrong, block)
