from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_layers import MLP, SINGLE, Communicator, MoE
from tinyllm_layers.testing import oracle, packed, random_mlp, random_moe
from tinyllm_ops import REFERENCE, OpSet, Phase, Weight
from tinyllm_ops.testing import assert_close, exact, normal

WIDTH, HIDDEN, EXPERTS, CHOSEN = 64, 96, 6, 3


def make(
    dtype: mx.Dtype = mx.float32,
    *,
    bits: int | None = None,
    norm_topk_prob: bool = True,
    ops: OpSet = REFERENCE,
) -> MoE:
    return random_moe(
        WIDTH,
        HIDDEN,
        EXPERTS,
        CHOSEN,
        norm_topk_prob=norm_topk_prob,
        dtype=dtype,
        pack=packed(bits),
        ops=ops,
    )


def share_of(layer: MoE, experts: range, communicator: Communicator = SINGLE) -> MoE:
    """Return the part of `layer` in a process that holds `experts`."""
    w_gate, w_up, w_down = (
        w[experts.start : experts.stop] for w in (layer.w_gate, layer.w_up, layer.w_down)
    )
    return replace(
        layer,
        w_gate=w_gate,
        w_up=w_up,
        w_down=w_down,
        local_experts=experts,
        communicator=communicator,
    )


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (2, 1, 3), (0,), (2, 0)])
@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("norm_topk_prob", [True, False])
def test_sums_the_best_experts_by_their_routing_weights(
    ops: OpSet, dtype: mx.Dtype, lead: tuple[int, ...], bits: int | None, norm_topk_prob: bool
) -> None:
    layer = make(dtype, bits=bits, norm_topk_prob=norm_topk_prob, ops=ops)
    x = normal((*lead, WIDTH), dtype, seed=5)
    y = layer(x)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    assert_close(y, oracle.moe(exact(x), layer))


def test_a_prefill_of_many_tokens_is_its_tokens_one_by_one(ops: OpSet) -> None:
    layer = make(ops=ops)
    x = normal((1, 70, WIDTH), seed=6)
    alone = mx.concatenate([layer(x[:, i : i + 1]) for i in range(70)], axis=1)
    assert_close(layer(x), exact(alone))


@pytest.mark.parametrize("lead", [(2, 1), (1, 1), (1, 7), (2, 0), (0, 1), (5,)])
@pytest.mark.parametrize("phase", [None, "prefill", "decode"])
@pytest.mark.parametrize("edges", [(0, 3, 6), (0, 1, 2, 6)])
def test_experts_of_several_processes_sum_up(
    ops: OpSet, dtype: mx.Dtype, lead: tuple[int, ...], phase: Phase | None, edges: tuple[int, ...]
) -> None:
    whole = make(dtype, ops=ops)
    x = normal((*lead, WIDTH), dtype, seed=5)
    total = np.zeros(x.shape)
    for first, last in pairwise(edges):
        total += exact(share_of(whole, range(first, last))(x, phase=phase))
    assert_close(mx.array(total).astype(mx.float32), oracle.moe(exact(x), whole), dtype)


class Rank(Communicator):
    """A communicator for one of two ranks. `all_reduce` adds 100, so that tests see each call."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def all_reduce(self, part: mx.array) -> mx.array:
        return part + 100


def test_the_first_process_adds_the_residual_before_the_sum(ops: OpSet) -> None:
    whole = make(ops=ops)
    x, residual = (normal((2, 3, WIDTH), seed=seed) for seed in (5, 6))
    for rank, experts in enumerate([range(3), range(3, 6)]):
        alone = share_of(whole, experts)(x)
        y = share_of(whole, experts, Rank(rank))(x, residual=residual)
        assert_close(y, exact(alone) + 100 + (exact(residual) if rank == 0 else 0))


def test_one_expert_of_one_is_an_mlp(ops: OpSet, projection: Callable[..., Weight]) -> None:
    gate, up = (projection(96, 64, seed=seed) for seed in (1, 2))
    down = projection(64, 96, seed=3)
    x = normal((4, 64), seed=4)
    alone = MLP(64, 96, gate, up, down, ops=ops)(x)
    router = mx.zeros((1, 64))
    layer = MoE(64, 96, 1, 1, router, gate[None], up[None], down[None], ops=ops)
    assert_close(layer(x), exact(alone))


def test_scores_are_float32_whatever_the_dtype(ops: OpSet) -> None:
    # The scores of the two experts are equal in bfloat16 and differ in float32.
    router = mx.array([[1.0, 1.0], [1.0, 1.0078125]]).astype(mx.bfloat16)
    x = mx.array([[256.0, 1.0]]).astype(mx.bfloat16)
    w = mx.zeros((2, 2, 2), mx.bfloat16)
    routing_weights, chosen = MoE(2, 2, 2, 1, router, w, w, w, ops=ops).route(x)
    assert routing_weights.dtype == mx.float32
    assert chosen.tolist() == [[1]]


@pytest.mark.parametrize(
    ("lead", "phase", "expected"),
    [
        ((1, 1), None, "decode"),
        ((4, 1), None, "decode"),
        ((1, 4), None, "prefill"),
        ((4,), None, "prefill"),
        ((1, 1), "prefill", "prefill"),
        ((1, 4), "decode", "decode"),
    ],
)
def test_the_phase_reaches_the_products_of_experts(
    ops: OpSet, lead: tuple[int, ...], phase: Phase | None, expected: Phase
) -> None:
    phases: list[str | None] = []

    def expert_linear(*args: Any, phase: Any = None) -> Any:
        phases.append(phase)
        return ops.expert_linear(*args, phase=phase)

    make(ops=replace(ops, expert_linear=expert_linear))(mx.zeros((*lead, WIDTH)), phase=phase)  # type: ignore[arg-type]
    assert phases == [expected] * 3


@pytest.mark.parametrize("norm_topk_prob", [True, False])
def test_routes_to_the_most_probable_experts_best_first(ops: OpSet, norm_topk_prob: bool) -> None:
    router = mx.log(mx.array([[0.1], [0.4], [0.2], [0.3]]))
    w = mx.zeros((4, 1, 1))
    layer = MoE(1, 1, 4, 2, router, w, w, w, norm_topk_prob=norm_topk_prob, ops=ops)
    routing_weights, chosen = layer.route(mx.ones((2, 1, 1)))
    assert chosen.tolist() == [[[1, 3]]] * 2
    expected = np.array([4 / 7, 3 / 7]) if norm_topk_prob else np.array([0.4, 0.3])
    assert_close(routing_weights, np.broadcast_to(expected, (2, 1, 2)))


def test_of_equal_experts_the_first_ones_are_chosen(ops: OpSet) -> None:
    w = mx.zeros((40, 1, 1))
    _, chosen = MoE(1, 1, 40, 3, mx.zeros((40, 1)), w, w, w, ops=ops).route(mx.ones((2, 1)))
    assert chosen.tolist() == [[0, 1, 2]] * 2


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
        MoE(3, 5, 2, 1, **(weights | {wrong: mx.zeros((9,))}))  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("lead", [(), (2, 3), (0,)])
def test_a_shared_expert_computes_every_token(
    ops: OpSet, dtype: mx.Dtype, lead: tuple[int, ...], bits: int | None
) -> None:
    layer = random_moe(
        WIDTH, HIDDEN, EXPERTS, CHOSEN, shared_dim=160, dtype=dtype, pack=packed(bits), ops=ops
    )
    x, residual = (normal((*lead, WIDTH), dtype, seed=seed) for seed in (5, 6))
    expected = oracle.moe(exact(x), layer)
    assert_close(layer(x), expected)
    assert_close(layer(x, residual=residual), expected + exact(residual))


def test_the_parts_of_a_shared_expert_in_several_processes_sum_up(ops: OpSet) -> None:
    whole = random_moe(WIDTH, HIDDEN, EXPERTS, CHOSEN, shared_dim=160, ops=ops)
    assert whole.shared is not None
    x = normal((2, 3, WIDTH), seed=5)
    total = np.zeros(x.shape)
    for first, last, hidden in ((0, 3, slice(0, 100)), (3, 6, slice(100, 160))):
        shared = MLP(
            WIDTH,
            hidden.stop - hidden.start,
            whole.shared.w_gate[hidden],
            whole.shared.w_up[hidden],
            whole.shared.w_down[:, hidden],
            ops=ops,
        )
        total += exact(replace(share_of(whole, range(first, last)), shared=shared)(x))
    assert_close(mx.array(total).astype(mx.float32), oracle.moe(exact(x), whole))


class Group(Communicator):
    size = 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shared": None}, "shared: expected both `shared` and `shared_gate`, or neither"),
        ({"shared_gate": None}, "shared_gate: expected both `shared` and `shared_gate`"),
        ({"shared_gate": mx.zeros((2, 64))}, r"shared_gate: expected shape \(1, 64\), got"),
        ({"shared": random_mlp(32, 8)}, "shared: expected an MLP of dim 64 .*, got dim 32 and 1"),
        ({"shared": random_mlp(64, 8, communicator=Group())}, "of its own, got dim 64 and 2 proc"),
    ],
)
def test_refuses_a_shared_expert_that_does_not_fit(changes: dict[str, Any], words: str) -> None:
    layer = random_moe(WIDTH, HIDDEN, EXPERTS, CHOSEN, shared_dim=160)
    with pytest.raises(ValueError, match=words):
        replace(layer, **changes)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(3, 10, WIDTH), (WIDTH,)])
def test_a_residual_of_another_shape_is_refused(ops: OpSet, shape: tuple[int, ...]) -> None:
    layer = make(ops=ops)
    with pytest.raises(ValueError, match="residual: expected shape"):
        layer(mx.zeros((1, 10, WIDTH)), residual=mx.zeros(shape))
    with pytest.raises(ValueError, match="residual: expected dtype"):
        layer(mx.zeros((1, WIDTH)), residual=mx.zeros((1, WIDTH), mx.float16))
