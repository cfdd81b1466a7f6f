"""Blocks that run together are blocks that run one after the other."""

from collections.abc import Callable

import mlx.core as mx
import pytest
from tinyllm_layers import (
    MLP,
    DenseCache,
    GroupedQueryAttention,
    KVCache,
    MoE,
    QuantizedCache,
    RMSNorm,
    RotatingCache,
    TransformerBlock,
    run_blocks,
)
from tinyllm_ops import OpSet, Weight
from tinyllm_ops.testing import normal

WIDTH, HIDDEN, EXPERTS = 64, 96, 4
Make = Callable[[str], TransformerBlock]


@pytest.fixture
def make(
    ops: OpSet,
    make_attention: Callable[..., GroupedQueryAttention],
    projection: Callable[..., Weight],
) -> Make:
    """Make a block: with an MLP, or with experts."""

    def made(kind: str) -> TransformerBlock:
        attention = make_attention(WIDTH, 2, 1, 32, biased="", dtype=mx.float32, ops=ops)
        norms = [RMSNorm(WIDTH, mx.ones((WIDTH,)), 1e-6, ops=ops) for _ in range(2)]
        shapes = ((HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN))
        if kind == "mlp":
            weights = (normal(shape, mx.float32, seed=1, magnitude=0.1) for shape in shapes)
            return TransformerBlock(attention, MLP(WIDTH, HIDDEN, *weights, ops=ops), *norms)
        stacks = (normal((EXPERTS, *shape), mx.float32, seed=2, magnitude=0.1) for shape in shapes)
        router = normal((EXPERTS, WIDTH), mx.float32, seed=3)
        moe = MoE(WIDTH, HIDDEN, EXPERTS, 2, router, *stacks, norm_topk_prob=True, ops=ops)
        return TransformerBlock(attention, moe, *norms)

    return made


def caches(kinds: str) -> list[KVCache]:
    made: dict[str, Callable[[], KVCache]] = {
        "d": DenseCache,
        "r": lambda: RotatingCache(8),
        "q": lambda: QuantizedCache(8, 32),
    }
    return [made[kind]() for kind in kinds]


@pytest.mark.parametrize(
    ("blocks", "kinds"),
    [
        (["mlp"] * 3, "ddd"),
        (["mlp"] * 4, "drrd"),
        (["mlp"] * 3, "qqd"),
        (["mlp", "moe", "moe", "mlp"], "dddd"),
    ],
    ids=str,
)
def test_whatever_their_caches_are(make: Make, blocks: list[str], kinds: str) -> None:
    stack, together, singly = [make(kind) for kind in blocks], caches(kinds), caches(kinds)
    for length in (5, 1, 1, 6):
        x = normal((1, length, WIDTH), mx.float32, seed=length)
        y = run_blocks(x, stack, together)
        for block, cache in zip(stack, singly, strict=True):
            x = block(x, cache)
        assert mx.array_equal(y, x)
    assert [cache.offset for cache in together] == [13] * len(blocks)


def test_caches_that_are_out_of_step_are_each_their_own(make: Make) -> None:
    stack, together, singly = [make("mlp") for _ in range(2)], caches("dd"), caches("dd")
    for run in (together, singly):
        run_blocks(normal((1, 5, WIDTH), mx.float32, seed=1), stack, run)
        run[1].trim(3)
    x = normal((1, 2, WIDTH), mx.float32, seed=2)
    y = run_blocks(x, stack, together)
    for block, cache in zip(stack, singly, strict=True):
        x = block(x, cache)
    assert mx.array_equal(y, x)
    assert [cache.offset for cache in together] == [7, 5]


def test_each_block_wants_a_cache(make: Make) -> None:
    with pytest.raises(ValueError, match="expected 2, one a block, got 1"):
        run_blocks(mx.zeros((1, 1, WIDTH)), [make("mlp"), make("mlp")], caches("d"))
