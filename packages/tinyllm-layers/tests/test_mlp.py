from collections.abc import Callable

import mlx.core as mx
import mlx.nn
import pytest
from tinyllm_layers import MLP
from tinyllm_ops import OpSet, Weight
from tinyllm_ops.testing import assert_close, exact, normal, oracle


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
    y = MLP(64, 96, gate, up, down, ops=ops)(x)
    assert y.dtype == dtype
    wide = exact(x)
    gated = oracle.swiglu(oracle.linear(wide, exact(gate)), oracle.linear(wide, exact(up)))
    assert_close(y, oracle.linear(gated, exact(down)))


def test_equals_three_linear_modules_of_mlx_nn(ops: OpSet) -> None:
    gate, up = mlx.nn.Linear(7, 19, bias=False), mlx.nn.Linear(7, 19, bias=False)
    down = mlx.nn.Linear(19, 7, bias=False)
    x = normal((3, 7), seed=1)
    ours = MLP(7, 19, gate.weight, up.weight, down.weight, ops=ops)(x)
    assert_close(ours, exact(down(mlx.nn.silu(gate(x)) * up(x))))


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
        MLP(3, 5, **(weights | {wrong: mx.zeros((3, 5, 1))}))
