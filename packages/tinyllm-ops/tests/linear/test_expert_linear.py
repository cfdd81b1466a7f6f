from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_ops import MLX, OpSet, QuantizationMode, quantize
from tinyllm_ops.testing import OPSETS, TOLERANCE, assert_close, exact, normal, oracle

FORMATS = [("affine", 2, 32), ("affine", 4, 64), ("affine", 5, 32), ("affine", 8, 128)]
FORMATS += [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]
CHOICES = [[0], [2, 2, 2], [0, 1, 2, 3, 4], [1, 1, 3], [4, 4]]
UNSORTED = [[4, 0], [2, 0, 2, 1, 0, 4, 2], [4, 3, 2, 1, 0], [3, 1, 4, 1, 0] * 20]


@pytest.mark.parametrize("experts", CHOICES, ids=str)
def test_multiplies_each_row_by_its_own_expert(
    ops: OpSet, dtype: mx.Dtype, experts: list[int]
) -> None:
    x = normal((len(experts), 37), dtype, seed=1)
    w = normal((5, 11, 37), dtype, seed=2)
    y = ops.expert_linear(x, w, mx.array(experts))
    assert y.dtype == dtype
    assert_close(y, oracle.expert_linear(exact(x), exact(w), np.array(experts)))


def test_experts_without_rows_give_none(ops: OpSet) -> None:
    y = ops.expert_linear(mx.zeros((2, 4)), mx.zeros((2, 0, 4)), mx.array([1, 0]))
    mx.eval(y)
    assert y.shape == (2, 0)


@pytest.mark.parametrize("experts", UNSORTED, ids=lambda experts: str(len(experts)))
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_rows_may_stand_in_any_order(
    ops: OpSet, dtype: mx.Dtype, experts: list[int], packed: bool
) -> None:
    x = normal((len(experts), 64), dtype, seed=1)
    dense = normal((5, 11, 64), dtype, seed=2)
    w = quantize(dense) if packed else dense
    y = ops.expert_linear(x, w, mx.array(experts))
    assert_close(y, oracle.expert_linear(exact(x), exact(w), np.array(experts)))


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_sorted_indices_is_set_only_for_sorted_rows(
    monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """Check the calls of MLX, since a wrong `sorted_indices` changes results only on a GPU."""
    checked: list[bool] = []

    def gather(*args: Any, rhs_indices: mx.array, sorted_indices: bool, **rest: Any) -> mx.array:
        if sorted_indices:
            checked.append(mx.array_equal(rhs_indices, mx.sort(rhs_indices)).item())  # type: ignore[arg-type]
        return original(*args, rhs_indices=rhs_indices, sorted_indices=sorted_indices, **rest)

    name = "gather_qmm" if packed else "gather_mm"
    original = getattr(mx, name)
    monkeypatch.setattr(mx, name, gather)
    dense = normal((5, 11, 64), seed=2)
    for experts in UNSORTED:
        x = normal((len(experts), 64), seed=1)
        MLX.expert_linear(x, quantize(dense) if packed else dense, mx.array(experts))
    assert checked == [True]  # only the last case has enough rows to be sorted


@pytest.mark.parametrize("lead", [(1, 4), (4, 1), (2, 1, 2)])
def test_rows_may_have_several_axes(ops: OpSet, lead: tuple[int, ...]) -> None:
    x, w = normal((*lead, 32), seed=1), normal((3, 8, 32), seed=2)
    experts = np.array([0, 0, 1, 2]).reshape(lead)
    y = ops.expert_linear(x, w, mx.array(experts))
    assert_close(y, oracle.expert_linear(exact(x), exact(w), experts))


@pytest.mark.parametrize(("mode", "bits", "group"), FORMATS)
def test_reads_packed_experts_as_the_numbers_they_stand_for(
    ops: OpSet, dtype: mx.Dtype, mode: QuantizationMode, bits: int, group: int
) -> None:
    experts = [0, 0, 3, 4]
    x = normal((4, 256), dtype, seed=1)
    w = quantize(normal((5, 24, 256), dtype, seed=2), group, bits, mode)
    y = ops.expert_linear(x, w, mx.array(experts, dtype=mx.uint32))
    assert y.dtype == dtype
    assert_close(y, oracle.expert_linear(exact(x), exact(w), np.array(experts)))


@given(
    experts=st.lists(st.integers(0, 6), max_size=90),
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 40),
    opset=st.sampled_from(OPSETS),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=40)
def test_takes_any_choice(
    experts: list[int], inputs: int, outputs: int, opset: OpSet, dtype: mx.Dtype
) -> None:
    x = normal((len(experts), inputs), dtype, seed=1)
    w = normal((7, outputs, inputs), dtype, seed=2)
    chosen = np.array(experts, dtype=np.int32)
    y = opset.expert_linear(x, w, mx.array(chosen))
    assert_close(y, oracle.expert_linear(exact(x), exact(w), chosen))


def test_experts_without_rows_are_not_read(ops: OpSet) -> None:
    w = normal((3, 8, 32), seed=1)
    w[1] = mx.nan
    y = ops.expert_linear(normal((2, 32), seed=2), w, mx.array([0, 2]))
    assert mx.isfinite(y).all().item()


def test_a_thousand_rows_do_not_copy_the_experts_for_each(ops: OpSet) -> None:
    x, w = normal((1024, 64), seed=1), normal((4, 256, 64), seed=2)
    experts = mx.repeat(mx.arange(4), 256)
    mx.eval(x, w, experts)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(ops.expert_linear(x, w, experts))
    copies = 1024 * w[0].nbytes
    assert mx.get_peak_memory() - before < copies / 8


@pytest.mark.parametrize(
    ("x", "w", "experts", "words"),
    [
        ((2, 3), (4, 5, 6), (2,), r"x: expected shape \(..., N, 6\), got \(2, 3\)"),
        ((6,), (4, 5, 6), (2,), r"x: expected shape \(..., N, 6\), got \(6,\)"),
        ((2, 6), (5, 6), (2,), r"w: expected axes X O I, got shape \(5, 6\)"),
        ((2, 1, 6), (4, 5, 6), (2,), r"experts: expected shape \(2, 1\), got \(2,\)"),
        ((2, 6), (4, 5, 6), (3,), r"experts: expected shape \(2,\), got \(3,\)"),
        ((2, 6), (0, 5, 6), (2,), r"w: expected a matrix for each .*, got shape \(0, 5, 6\)"),
    ],
)
def test_refuses_shapes_that_do_not_fit(
    ops: OpSet,
    unchecked: None,
    x: tuple[int, ...],
    w: tuple[int, ...],
    experts: tuple[int, ...],
    words: str,
) -> None:
    with pytest.raises(ValueError, match=words):
        ops.expert_linear(mx.zeros(x), mx.zeros(w), mx.zeros(experts, mx.int32))


def test_refuses_experts_that_are_no_integers(ops: OpSet, unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"experts: expected an integer dtype, got .*float32"):
        ops.expert_linear(mx.zeros((1, 4)), mx.zeros((2, 4, 4)), mx.zeros((1,)))


def test_refuses_two_dtypes(ops: OpSet) -> None:
    with pytest.raises(ValueError, match=r"w: expected dtype .*float32, got .*float16"):
        ops.expert_linear(mx.zeros((1, 4)), mx.zeros((2, 4, 4), mx.float16), mx.zeros(1, mx.int32))
