from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn
import pytest
from tinyllm_layers import MLP, Communicator
from tinyllm_layers.testing import oracle, random_mlp
from tinyllm_ops import OpSet, Weight
from tinyllm_ops.testing import assert_close, exact, normal


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (2, 1, 3), (0,), (2, 0)])
@pytest.mark.parametrize("bits", [None, 4, 8])
def test_is_w_down_of_the_gated_w_up(
    ops: OpSet,
    dtype: mx.Dtype,
    projection: Callable[..., Weight],
    lead: tuple[int, ...],
    bits: int | None,
) -> None:
    gate, up = (projection(96, 64, dtype, seed=seed, bits=bits) for seed in (1, 2))
    down = projection(64, 96, dtype, seed=3, bits=bits)
    x = normal((*lead, 64), dtype, seed=4)
    layer = MLP(64, 96, gate, up, down, ops=ops)
    y = layer(x)
    assert y.dtype == dtype
    assert_close(y, oracle.mlp(exact(x), layer))


def test_equals_three_linear_modules_of_mlx_nn(ops: OpSet) -> None:
    gate, up = mlx.nn.Linear(7, 19, bias=False), mlx.nn.Linear(7, 19, bias=False)
    down = mlx.nn.Linear(19, 7, bias=False)
    x = normal((3, 7), seed=1)
    ours = MLP(7, 19, gate.weight, up.weight, down.weight, ops=ops)(x)
    assert_close(ours, exact(down(mlx.nn.silu(gate(x)) * up(x))))


class Rank(Communicator):
    """A communicator for one of two ranks. `all_reduce` adds 100, so that tests see each call."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def all_reduce(self, part: mx.array) -> mx.array:
        return part + 100


def test_the_first_process_adds_the_residual_before_the_sum(ops: OpSet) -> None:
    x, residual = (normal((2, 3, 64), seed=seed) for seed in (4, 5))
    for rank in range(2):
        layer = random_mlp(communicator=Rank(rank), ops=ops)
        expected = oracle.mlp(exact(x), layer) + (exact(residual) if rank == 0 else 0) + 100
        assert_close(layer(x, residual=residual), expected)


def test_the_phase_reaches_every_product(ops: OpSet) -> None:
    phases: list[str | None] = []

    def linear(*args: Any, phase: Any = None, **kwargs: Any) -> Any:
        phases.append(phase)
        return ops.linear(*args, phase=phase, **kwargs)

    layer = random_mlp(ops=replace(ops, linear=linear))
    for phase in ("prefill", "decode", None):
        layer(mx.zeros((1, 1, 64)), phase=phase)
    assert phases == ["prefill"] * 3 + ["decode"] * 3 + [None] * 3


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("w_gate", r"w_gate: expected shape \(5, 3\), got \(3, 5, 1\)"),
        ("w_up", r"w_up: expected shape \(5, 3\), got \(3, 5, 1\)"),
        ("w_down", r"w_down: expected shape \(3, 5\), got \(3, 5, 1\)"),
    ],
)
def test_refuses_weights_of_another_shape(wrong: str, words: str) -> None:
    weights = {"w_gate": mx.zeros((5, 3)), "w_up": mx.zeros((5, 3)), "w_down": mx.zeros((3, 5))}
    with pytest.raises(ValueError, match=words):
        MLP(3, 5, **(weights | {wrong: mx.zeros((3, 5, 1))}))  # type: ignore[arg-type]
