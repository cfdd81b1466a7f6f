from typing import Any

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_ops import MLX, OpSet, QuantizationMode, quantize
from tinyllm_ops.testing import OPSETS, TOLERANCE, assert_close, exact, normal, oracle

FORMATS = [("affine", 2, 32), ("affine", 3, 64), ("affine", 4, 64), ("affine", 5, 128)]
FORMATS += [("affine", 6, 32), ("affine", 8, 128), ("mxfp4", 4, 32), ("mxfp8", 8, 32)]
FORMATS += [("nvfp4", 4, 16)]


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("biased", [True, False])
def test_is_x_times_w_transposed_plus_bias(
    ops: OpSet, dtype: mx.Dtype, lead: tuple[int, ...], biased: bool
) -> None:
    x = normal((*lead, 37), dtype, seed=1)
    w = normal((11, 37), dtype, seed=2)
    bias = normal((11,), dtype, seed=3) if biased else None
    y = ops.linear(x, w, bias)
    assert y.dtype == dtype
    assert_close(y, oracle.linear(exact(x), exact(w), None if bias is None else exact(bias)))


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (2, 1, 3), (0, 3)])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("form", ["dense", "quantized"])
def test_adds_the_residual_last(
    ops: OpSet, dtype: mx.Dtype, lead: tuple[int, ...], biased: bool, form: str
) -> None:
    x = normal((*lead, 64), dtype, seed=1)
    dense = normal((11, 64), dtype, seed=2)
    w = quantize(dense) if form == "quantized" else dense
    bias = normal((11,), dtype, seed=3) if biased else None
    residual = normal((*lead, 11), dtype, seed=4, magnitude=30.0)
    y = ops.linear(x, w, bias, residual)
    assert y.dtype == dtype
    wide = None if bias is None else exact(bias)
    assert_close(y, oracle.linear(exact(x), exact(w), wide, exact(residual)))
    assert mx.array_equal(y, ops.linear(x, w, bias) + residual)


@pytest.mark.parametrize(("mode", "bits", "group"), FORMATS)
@pytest.mark.parametrize("lead", [(), (9,), (2, 3)])
def test_reads_quantized_weights_as_the_numbers_they_stand_for(
    ops: OpSet,
    dtype: mx.Dtype,
    mode: QuantizationMode,
    bits: int,
    group: int,
    lead: tuple[int, ...],
) -> None:
    x = normal((*lead, 256), dtype, seed=1)
    w = quantize(normal((40, 256), dtype, seed=2), group, bits, mode)
    bias = normal((40,), dtype, seed=3)
    y = ops.linear(x, w, bias)
    assert y.dtype == dtype
    assert_close(y, oracle.linear(exact(x), exact(w), exact(bias)))


@pytest.mark.parametrize("lead", [(), (9,), (2, 3)])
@pytest.mark.parametrize("inputs", [64, 128])
def test_products_that_are_wrong_on_cuda_are_not_asked_of_mlx(
    monkeypatch: pytest.MonkeyPatch, dtype: mx.Dtype, lead: tuple[int, ...], inputs: int
) -> None:
    multiply = mx.quantized_matmul
    products: list[mx.array] = []

    def product_of_cuda(
        x: mx.array, packed: mx.array, scales: mx.array, *rest: Any, **more: Any
    ) -> mx.array:
        assert x.ndim > 1
        assert scales.shape[-1] > 1
        products.append(packed)
        return multiply(x, packed, scales, *rest, **more)

    monkeypatch.setattr("tinyllm_ops.mlx._on_cuda", lambda: True)
    monkeypatch.setattr(mx, "quantized_matmul", product_of_cuda)
    x = normal((*lead, inputs), dtype, seed=1)
    w = quantize(normal((11, inputs), dtype, seed=2), 64)
    y = MLX.linear(x, w)
    assert y.dtype == dtype
    assert_close(y, oracle.linear(exact(x), exact(w), None))
    assert len(products) == (inputs > 64)  # longer rows stay packed


@given(
    x_lead=st.lists(st.integers(0, 4), max_size=3),
    inputs=st.integers(0, 70),
    outputs=st.integers(0, 70),
    opset=st.sampled_from(OPSETS),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=40)
def test_takes_any_shape(
    x_lead: list[int], inputs: int, outputs: int, opset: OpSet, dtype: mx.Dtype
) -> None:
    x = normal((*x_lead, inputs), dtype, seed=1)
    w = normal((outputs, inputs), dtype, seed=2)
    bias = normal((outputs,), dtype, seed=3)
    assert_close(opset.linear(x, w, bias), oracle.linear(exact(x), exact(w), exact(bias)))


@pytest.mark.parametrize("lead", [(0,), (2, 0), (0, 3)])
def test_no_rows_give_an_empty_result(ops: OpSet, dtype: mx.Dtype, lead: tuple[int, ...]) -> None:
    x = mx.zeros((*lead, 64), dtype)
    w = normal((5, 64), dtype, seed=1)
    for weight in (w, quantize(w)):
        y = ops.linear(x, weight)
        assert (y.shape, y.dtype) == ((*lead, 5), dtype)


def test_no_inputs_give_the_bias(ops: OpSet) -> None:
    bias = mx.array([1.0, -2.0])
    y = ops.linear(mx.zeros((3, 0)), mx.zeros((2, 0)), bias)
    assert_close(y, np.array([[1.0, -2.0]] * 3))


@pytest.mark.parametrize("magnitude", [1e-3, 200.0])
def test_keeps_its_precision_over_a_long_sum(ops: OpSet, dtype: mx.Dtype, magnitude: float) -> None:
    x = normal((3, 4096), dtype, seed=1, magnitude=magnitude)
    w = normal((8, 4096), dtype, seed=2)
    assert_close(ops.linear(x, w), oracle.linear(exact(x), exact(w)))
    packed = quantize(w)
    assert_close(ops.linear(x, packed), oracle.linear(exact(x), exact(packed)))


def test_equals_mlx_nn_in_float32(ops: OpSet) -> None:
    layer = mlx.nn.Linear(33, 17)
    x = normal((4, 33), seed=1)
    assert_close(ops.linear(x, layer.weight, layer.bias), exact(layer(x)))


@pytest.mark.parametrize(
    ("x", "w", "bias", "words"),
    [
        ((2, 3), (4, 5), None, r"x: expected shape \(..., 5\), got \(2, 3\)"),
        ((), (4, 5), None, r"x: expected shape \(..., 5\), got \(\)"),
        ((2, 5), (5,), None, r"w: expected axes O I, got shape \(5,\)"),
        ((2, 5), (1, 4, 5), None, r"w: expected axes O I, got shape \(1, 4, 5\)"),
        ((2, 5), (4, 5), (5,), r"bias: expected shape \(4,\), got \(5,\)"),
    ],
)
def test_refuses_shapes_that_do_not_fit(
    ops: OpSet,
    unchecked: None,
    x: tuple[int, ...],
    w: tuple[int, ...],
    bias: tuple[int, ...] | None,
    words: str,
) -> None:
    with pytest.raises(ValueError, match=words):
        ops.linear(mx.zeros(x), mx.zeros(w), None if bias is None else mx.zeros(bias))


@pytest.mark.parametrize("shape", [(4,), (2, 5), (3, 4), (1, 2, 4)], ids=str)
def test_refuses_a_residual_of_another_shape(
    ops: OpSet, unchecked: None, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"residual: expected shape \(2, 4\), got \("):
        ops.linear(mx.zeros((2, 5)), mx.zeros((4, 5)), None, mx.zeros(shape))


def test_refuses_two_dtypes(ops: OpSet) -> None:
    x, w = mx.zeros((2, 5)), mx.zeros((4, 5))
    with pytest.raises(ValueError, match=r"w: expected dtype .*float32, got .*float16"):
        ops.linear(x, w.astype(mx.float16))
    with pytest.raises(ValueError, match=r"bias: expected dtype .*float32, got .*bfloat16"):
        ops.linear(x, w, mx.zeros((4,), mx.bfloat16))
    with pytest.raises(ValueError, match=r"residual: expected dtype .*float32, got .*float16"):
        ops.linear(x, w, None, mx.zeros((2, 4), mx.float16))


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_a_packed_weight_without_rows_gives_an_empty_result(
    ops: OpSet, lead: tuple[int, ...]
) -> None:
    w = quantize(mx.zeros((0, 64)))
    assert ops.linear(mx.ones((*lead, 64)), w).shape == (*lead, 0)
    stacked = quantize(mx.zeros((3, 0, 64)))
    if lead:
        experts = mx.zeros(lead, mx.int32)
        assert ops.expert_linear(mx.ones((*lead, 64)), stacked, experts).shape == (*lead, 0)


@pytest.mark.usefixtures("unchecked")
def test_an_array_of_numpy_is_refused_by_its_type(ops: OpSet) -> None:
    w = mx.zeros((3, 4))
    with pytest.raises(ValueError, match=r"x: expected an mx.array, got ndarray: use mx.array"):
        ops.linear(np.ones((2, 4), np.float32), w)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"ids: expected an mx.array, got list"):
        ops.embedding([0], w)  # type: ignore[arg-type]
