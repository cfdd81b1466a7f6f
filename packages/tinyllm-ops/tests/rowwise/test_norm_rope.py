from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import Fusion, OpSet, Positions, Yarn, norm_rope
from tinyllm_ops.testing import assert_close, exact, normal, oracle

POSITIONS: list[tuple[Positions, list[list[int]]]] = [
    (slice(5, 8), [[5, 6, 7]] * 2),
    (mx.array([[0, 5, 1], [30, 2, 2]]), [[0, 5, 1], [30, 2, 2]]),
]


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("traditional", [True, False])
@pytest.mark.parametrize("scaling", [None, Yarn(4.0, 32)], ids=["plain", "yarn"])
@pytest.mark.parametrize(("positions", "written_out"), POSITIONS)
def test_normalizes_then_rotates_and_puts_heads_before_tokens(
    ops: OpSet,
    dtype: mx.Dtype,
    positions: Positions,
    written_out: list[list[int]],
    scaling: Yarn | None,
    traditional: bool,
    normed: bool,
) -> None:
    x = normal((2, 3, 4, 16), dtype, seed=1, magnitude=3.0)
    weight = normal((16,), dtype, seed=2) if normed else None
    y = norm_rope(ops, x, weight, 0.5, positions, 100.0, traditional, scaling)
    heads = exact(x) if weight is None else oracle.rms_norm(exact(x), exact(weight), 0.5)
    rotated = oracle.rope(heads, np.array(written_out), 100.0, traditional, scaling)
    assert y.dtype == dtype
    assert_close(y, rotated.swapaxes(1, 2))


@pytest.mark.parametrize("normed", [True, False])
def test_normalizes_all_features_and_rotates_the_first(
    ops: OpSet, dtype: mx.Dtype, normed: bool
) -> None:
    x = normal((2, 3, 4, 16), dtype, seed=1, magnitude=3.0)
    weight = normal((16,), dtype, seed=2) if normed else None
    y = norm_rope(ops, x, weight, 0.5, slice(5, 8), 100.0, dims=4)
    heads = exact(x) if weight is None else oracle.rms_norm(exact(x), exact(weight), 0.5)
    assert_close(y, oracle.rope(heads, np.arange(5, 8), 100.0, dims=4).swapaxes(1, 2))


def test_has_the_bits_of_the_two_ops_where_there_is_no_fusion(ops: OpSet, dtype: mx.Dtype) -> None:
    x, weight = normal((2, 3, 4, 16), dtype, seed=1), normal((16,), dtype, seed=2)
    y = norm_rope(ops, x, weight, 1e-6, slice(5, 8), 1e6)
    assert mx.array_equal(
        y, ops.rope(ops.rms_norm(x, weight, 1e-6), slice(5, 8), 1e6).swapaxes(1, 2)
    )
    y = norm_rope(ops, x, None, 1e-6)
    assert mx.array_equal(y, ops.rope(x).swapaxes(1, 2))


def test_a_fusion_gets_every_argument_and_gives_the_result(ops: OpSet) -> None:
    calls: list[tuple[object, ...]] = []

    def fused(*arguments: Any) -> mx.array:
        calls.append(arguments)
        return mx.full((2, 4, 3, 16), 7.0)

    x, weight, yarn = mx.zeros((2, 3, 4, 16)), mx.ones(16), Yarn(4.0, 32)
    with_fusion = replace(ops, norm_rope=Fusion(fused, of=("rms_norm", "rope")))  # type: ignore[arg-type]
    y = norm_rope(with_fusion, x, weight, 1e-6, slice(5, 8), 1e6, True, yarn, 4)
    assert (y == 7).all().item()
    assert calls == [(x, weight, 1e-6, slice(5, 8), 1e6, True, yarn, 4)]


def test_calls_ops_that_were_replaced(ops: OpSet) -> None:
    def shifted(x: mx.array, *rest: Any) -> mx.array:
        return x + 1

    x = normal((2, 3, 4, 16), seed=1)
    own = replace(ops, rope=shifted)  # type: ignore[arg-type]
    assert mx.array_equal(norm_rope(own, x, None, 1e-6), (x + 1).swapaxes(1, 2))
    own = replace(ops, rms_norm=shifted, rope=shifted)  # type: ignore[arg-type]
    assert mx.array_equal(norm_rope(own, x, mx.ones(16), 1e-6), (x + 1 + 1).swapaxes(1, 2))


def test_refuses_the_mistakes_that_the_two_ops_refuse(ops: OpSet, unchecked: None) -> None:
    x = mx.zeros((2, 3, 4, 16))
    with pytest.raises(ValueError, match=r"weight: expected shape \(16,\), got \(4,\)"):
        norm_rope(ops, x, mx.ones(4), 1e-6)
    with pytest.raises(ValueError, match=r"eps: expected a number not below 0, got -1"):
        norm_rope(ops, x, mx.ones(16), -1.0)
    with pytest.raises(ValueError, match=r"positions: expected a slice of 3 positions"):
        norm_rope(ops, x, mx.ones(16), 1e-6, slice(0, 4))
