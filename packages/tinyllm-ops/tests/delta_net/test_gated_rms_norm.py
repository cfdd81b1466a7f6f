import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_ops import OpSet
from tinyllm_ops.testing import OPSETS, TOLERANCE, assert_close, exact, normal, oracle


@given(
    lead=st.lists(st.integers(0, 4), max_size=3),
    dim=st.integers(1, 300),
    eps=st.sampled_from([0.0, 1e-6, 0.5]),
    opset=st.sampled_from(OPSETS),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=40)
def test_normalizes_and_multiplies_by_weight_and_silu(
    lead: list[int], dim: int, eps: float, opset: OpSet, dtype: mx.Dtype
) -> None:
    x, gate = (normal((*lead, dim), dtype, seed=seed, magnitude=2.0) for seed in (1, 2))
    weight = normal((dim,), dtype, seed=3)
    y = opset.gated_rms_norm(x, gate, weight, eps)
    assert y.dtype == dtype
    assert_close(y, oracle.gated_rms_norm(exact(x), exact(gate), exact(weight), eps))


def test_is_rounded_once(ops: OpSet) -> None:
    x, gate = (normal((64, 32), mx.bfloat16, seed=seed) for seed in (1, 2))
    weight = normal((32,), mx.bfloat16, seed=3)
    y = exact(ops.gated_rms_norm(x, gate, weight))
    expected = oracle.gated_rms_norm(exact(x), exact(gate), exact(weight))
    # One rounding to 8 bits errs by at most 2^-8 of a number; each further one adds as much.
    assert np.all(np.abs(y - expected) <= np.abs(expected) * 2.0**-8 * 1.01)


def test_the_worked_example_comes_out(ops: OpSet) -> None:
    y = ops.gated_rms_norm(mx.array([3.0, 4.0]), mx.array([0.0, 100.0]), mx.array([1.0, 2.0]), 0.0)
    assert np.array(y) == pytest.approx([0.0, 2 * 4 / 12.5**0.5 * 100])


@pytest.mark.parametrize(
    ("x", "gate", "weight", "eps", "words"),
    [
        (mx.zeros((2, 3)), mx.zeros((2, 3)), mx.zeros(2), 1e-5, r"weight: expected shape \(3,\)"),
        (mx.zeros((2, 3)), mx.zeros((3, 3)), mx.zeros(3), 1e-5, r"gate: expected shape \(2, 3\)"),
        (mx.zeros(3), mx.zeros(3, mx.float16), mx.zeros(3), 1e-5, "gate: expected dtype .*32, got"),
        (mx.zeros(3), mx.zeros(3), mx.zeros(3), -1.0, "eps: expected a number not below 0, got -1"),
    ],
)
def test_refuses_arguments_that_do_not_fit(
    ops: OpSet,
    unchecked: None,
    x: mx.array,
    gate: mx.array,
    weight: mx.array,
    eps: float,
    words: str,
) -> None:
    with pytest.raises(ValueError, match=words):
        ops.gated_rms_norm(x, gate, weight, eps)
