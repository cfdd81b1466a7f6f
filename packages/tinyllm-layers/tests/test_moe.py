from collections.abc import Callable
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from tinyllm_layers import MLP, MoE
from tinyllm_ops import REFERENCE, MoeBlock, OpSet, Weight, quantize
from tinyllm_ops.testing import assert_close, exact, normal
from tinyllm_ops.testing.blocks import moe_block_oracle

WIDTH, HIDDEN, EXPERTS, CHOSEN = 64, 96, 6, 3


def experts(rows: int, columns: int, dtype: mx.Dtype, seed: int, bits: int | None) -> Weight:
    w = normal((EXPERTS, rows, columns), dtype, seed=seed, magnitude=columns**-0.5)
    return w if bits is None else quantize(w, 32, bits)


def make(
    dtype: mx.Dtype = mx.float32,
    *,
    bits: int | None = None,
    norm_topk_prob: bool = True,
    ops: OpSet = REFERENCE,
) -> MoE:
    router = normal((EXPERTS, WIDTH), dtype, seed=1, magnitude=0.5)
    return MoE(
        WIDTH,
        HIDDEN,
        EXPERTS,
        CHOSEN,
        router if bits is None else quantize(router, 32, 8),
        experts(HIDDEN, WIDTH, dtype, 2, bits),
        experts(HIDDEN, WIDTH, dtype, 3, bits),
        experts(WIDTH, HIDDEN, dtype, 4, bits),
        norm_topk_prob=norm_topk_prob,
        ops=ops,
    )


def expected(layer: MoE, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same in float64."""
    return moe_block_oracle(x, layer.value)


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (2, 1, 3), (0,), (2, 0)])
@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("norm_topk_prob", [True, False])
def test_adds_up_the_best_experts_by_their_shares(
    ops: OpSet, dtype: mx.Dtype, lead: tuple[int, ...], bits: int | None, norm_topk_prob: bool
) -> None:
    layer = make(dtype, bits=bits, norm_topk_prob=norm_topk_prob, ops=ops)
    x = normal((*lead, WIDTH), dtype, seed=5)
    y = layer(x)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    assert_close(y, expected(layer, exact(x)))


def test_a_prefill_of_many_tokens_is_its_tokens_one_by_one(ops: OpSet) -> None:
    layer = make(ops=ops)
    x = normal((1, 70, WIDTH), seed=6)
    alone = mx.concatenate([layer(x[:, i : i + 1]) for i in range(70)], axis=1)
    assert_close(layer(x), exact(alone))


@pytest.mark.parametrize("lead", [(2, 1), (1, 1), (1, 7), (2, 0)])
@pytest.mark.parametrize("edges", [(0, 3, 6), (0, 1, 2, 6)])
def test_experts_in_several_hands_add_up(
    ops: OpSet, dtype: mx.Dtype, lead: tuple[int, ...], edges: tuple[int, ...]
) -> None:
    whole = make(dtype, ops=ops)
    x = normal((*lead, WIDTH), dtype, seed=5)
    total = np.zeros(x.shape)
    for first, last in pairwise(edges):
        own = (w[first:last] for w in (whole.w_gate, whole.w_up, whole.w_down))
        held = range(first, last)
        part = MoE(WIDTH, HIDDEN, EXPERTS, CHOSEN, whole.w_router, *own, held=held, ops=ops)
        total += exact(part(x))
    assert_close(mx.array(total).astype(mx.float32), expected(whole, exact(x)), dtype)


def test_one_expert_of_one_is_an_mlp(ops: OpSet, projection: Callable[..., Weight]) -> None:
    gate, up = (projection(96, 64, seed=seed) for seed in (1, 2))
    down = projection(64, 96, seed=3)
    x = normal((4, 64), seed=4)
    alone = MLP(64, 96, gate, up, down, ops=ops)(x)
    router = mx.zeros((1, 64))
    layer = MoE(64, 96, 1, 1, router, gate[None], up[None], down[None], ops=ops)
    assert_close(layer(x), exact(alone))


def test_scores_are_float32_whatever_the_dtype(ops: OpSet) -> None:
    # Two experts whose scores are one in bfloat16, and apart in float32.
    router = mx.array([[1.0, 1.0], [1.0, 1.0078125]])
    x = mx.array([[256.0, 1.0]])
    w = mx.zeros((2, 2, 2))
    block = MoeBlock(None, router.astype(mx.bfloat16), w, w, w, 1)
    shares, chosen = ops.route(x.astype(mx.bfloat16), block)
    assert shares.dtype == mx.float32
    assert chosen.tolist() == [[1]]


@pytest.mark.parametrize("per_token", [0, 7])
def test_refuses_to_choose_none_or_more_than_there_are(per_token: int) -> None:
    w = mx.zeros((6, 4, 4))
    with pytest.raises(ValueError, match=f"num_experts_per_tok: expected 1 to 6, got {per_token}"):
        MoE(4, 4, 6, per_token, mx.zeros((6, 4)), w, w, w)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("w_router", r"w_router: expected shape \(2, 3\), got \(9,\)"),
        ("w_gate", r"w_gate: expected shape \(2, 5, 3\), got \(9,\)"),
        ("w_up", r"w_up: expected shape \(2, 5, 3\), got \(9,\)"),
        ("w_down", r"w_down: expected shape \(2, 3, 5\), got \(9,\)"),
    ],
)
def test_refuses_weights_of_another_shape(wrong: str, words: str) -> None:
    shapes = {"w_router": (2, 3), "w_gate": (2, 5, 3), "w_up": (2, 5, 3), "w_down": (2, 3, 5)}
    weights = {name: mx.zeros(shape) for name, shape in shapes.items()}
    with pytest.raises(ValueError, match=words):
        MoE(3, 5, 2, 1, **(weights | {wrong: mx.zeros((9,))}))
