"""`cpu-int8`: products that round activations to 8 bits, in each group that shares a scale of w."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from tinyllm_kernels import BackendError, opset
from tinyllm_kernels.testing import (
    LayerShape,
    WeightFormat,
    make_batches,
    make_caches,
    make_input,
    make_layers,
    same_bits,
)
from tinyllm_layers import Backend, LayerStack, MoE, make_stack
from tinyllm_ops import OpSet, Phase, QuantizationMode, QuantizedTensor, Weight, quantize
from tinyllm_ops.testing import assert_close, exact, normal, oracle

FORMS = [
    *((group, bits, "affine") for bits in (4, 8) for group in (32, 64, 128)),
    (32, 4, "mxfp4"),
]
UNCHANGED = [None, (32, 3, "affine"), (16, 4, "nvfp4")]


@pytest.fixture
def int8_ops(ops: OpSet) -> OpSet:
    """The backend `cpu-int8` with the kernels of one instruction set."""
    try:
        return opset("cpu-int8")
    except BackendError as error:
        pytest.skip(str(error))


@pytest.fixture(params=[mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> mx.Dtype:
    """Run a test with each dtype of scales that products of integers accept."""
    chosen: mx.Dtype = request.param
    return chosen


def rounded(x: mx.array, group: int) -> NDArray[np.float64]:
    """Return x rounded to multiples of 1/127 of the largest number of each group, in float64."""
    groups = np.array(x.astype(mx.float32)).reshape(*x.shape[:-1], -1, group)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    steps = np.rint(groups * (np.float32(127) / largest))  # in float32, as the kernels: ties
    return (steps * largest.astype(np.float64) / 127).reshape(x.shape)


def rounds(dtype: mx.Dtype, bits: int, phase: Phase) -> bool:
    """Return True if products with weights of `bits` bits round activations on this machine."""
    x, w = normal((1, 384), dtype, seed=1), quantize(normal((16, 384), dtype, seed=2), 64, bits)
    y, exact_y = (opset(name).linear(x, w, phase=phase) for name in ("cpu-int8", "cpu"))
    return not same_bits(y, exact_y)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_products_are_those_of_rounded_activations(
    int8_ops: OpSet, dtype: mx.Dtype, form: tuple[int, int, QuantizationMode], phase: Phase
) -> None:
    group, bits, _ = form
    w = quantize(normal((45, 384), dtype, seed=2), *form)
    x, bias = normal((37, 384), dtype, seed=1), normal((45,), dtype, seed=3)
    seen = rounded(x, group) if rounds(dtype, bits, phase) else exact(x)
    expected = oracle.linear(seen, exact(w), exact(bias))
    y = int8_ops.linear(x, w, bias, phase=phase)
    assert_close(y, expected)
    residual = normal((37, 45), dtype, seed=4)
    assert_close(int8_ops.linear(x, w, bias, residual, phase=phase), expected + exact(residual))
    # The error that docs/kernels/int8.md states.
    unrounded = oracle.linear(exact(x), exact(w), exact(bias))
    assert np.linalg.norm(exact(y) - unrounded) < 0.01 * np.linalg.norm(unrounded)


def test_4_bit_weights_are_multiplied_with_int8_activations_on_every_machine(
    int8_ops: OpSet, dtype: mx.Dtype
) -> None:
    assert rounds(dtype, 4, "decode")


def test_prompts_are_multiplied_with_int8_activations_except_in_bfloat16_on_amx(
    int8_ops: OpSet, native: ModuleType, dtype: mx.Dtype
) -> None:
    is_amx = native.chosen_instruction_set() == "amx"
    assert rounds(dtype, 4, "prefill") is not (is_amx and dtype == mx.bfloat16)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_do_not_overflow(
    int8_ops: OpSet, dtype: mx.Dtype, form: tuple[int, int, QuantizationMode], sign: int
) -> None:
    w = quantize(normal((45, 384), dtype, seed=2), *form)
    largest = 0x77777777 if form[2] == "mxfp4" else 0xFFFFFFFF
    w = replace(w, packed=mx.full(w.packed.shape, largest, mx.uint32))
    x = mx.full((9, 384), sign, dtype)
    assert_close(int8_ops.linear(x, w), oracle.linear(exact(x), exact(w)))


@pytest.mark.parametrize("form", [(64, 4, "affine"), (64, 8, "affine"), (32, 4, "mxfp4")], ids=str)
def test_a_row_has_the_same_bits_in_any_batch_and_phase(
    int8_ops: OpSet, dtype: mx.Dtype, form: tuple[int, int, QuantizationMode]
) -> None:
    phases: list[Phase] = ["prefill", "decode"]
    x, w = normal((1, 70, 384), dtype, seed=1), quantize(normal((45, 384), dtype, seed=2), *form)
    wholes = [int8_ops.linear(x, w, phase=phase) for phase in phases]
    # Without int8 products a phase is computed as by `cpu`, whose phases may differ.
    if all(rounds(dtype, form[1], phase) for phase in phases):
        assert same_bits(*wholes)
    for first, last in [(0, 1), (3, 10), (5, 21), (16, 48), (30, 63), (0, 70)]:
        for phase, whole in zip(phases, wholes, strict=True):
            part = int8_ops.linear(x[:, first:last], w, phase=phase)
            assert same_bits(part, whole[:, first:last]), (first, last, phase)


# Without VNNI, weights of 8 bits are multiplied as by `cpu`, and a warning says so.
@pytest.mark.filterwarnings("ignore:cpu-int8")
@pytest.mark.parametrize(
    "form",
    [(32, 4, "affine"), (128, 4, "affine"), (64, 8, "affine"), (32, 4, "mxfp4")],
    ids=str,
)
def test_a_long_prompt_has_the_bits_of_its_chunks(
    int8_ops: OpSet, dtype: mx.Dtype, form: tuple[int, int, QuantizationMode]
) -> None:
    """Vectors of AVX2 multiply many rows of x by two panels of prepared weights, block by block."""
    assert isinstance(int8_ops, Backend)
    plain = quantize(normal((1064, 1152), dtype, seed=2), *form)
    x = normal((1, 210, 1152), dtype, seed=1)
    weights: dict[str, Weight] = {"w": plain}
    int8_ops.prepare(weights)
    whole = int8_ops.linear(x, weights["w"], phase="prefill")
    assert same_bits(whole, int8_ops.linear(x, plain, phase="prefill"))
    for first in range(0, 210, 15):
        chunk = int8_ops.linear(x[:, first : first + 15], weights["w"], phase="prefill")
        assert same_bits(chunk, whole[:, first : first + 15]), first


@pytest.mark.parametrize("form", UNCHANGED, ids=str)
def test_other_weights_are_multiplied_as_by_cpu(
    int8_ops: OpSet, ops: OpSet, dtype: mx.Dtype, form: tuple[int, int, QuantizationMode] | None
) -> None:
    x, dense = normal((9, 384), dtype, seed=1), normal((45, 384), dtype, seed=2)
    w: Weight = dense if form is None else quantize(dense, *form)
    assert same_bits(int8_ops.linear(x, w), ops.linear(x, w))


@pytest.mark.parametrize("form", [(64, 4, "affine"), (64, 8, "affine"), (32, 4, "mxfp4")], ids=str)
def test_float32_is_multiplied_as_by_cpu(
    int8_ops: OpSet, ops: OpSet, dtype: mx.Dtype, form: tuple[int, int, QuantizationMode]
) -> None:
    x, w = normal((9, 384), mx.float32, seed=1), quantize(normal((45, 384), dtype, seed=2), *form)
    assert same_bits(int8_ops.linear(x, w), ops.linear(x, w))
    experts = mx.zeros(9, mx.int32)
    wide = quantize(normal((2, 45, 384), dtype, seed=2), *form)
    found = (each.expert_linear(x, wide, experts) for each in (int8_ops, ops))
    assert same_bits(*found)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_tokens_are_routed_as_by_cpu(
    int8_ops: OpSet, ops: OpSet, dtype: mx.Dtype, phase: Phase
) -> None:
    """The native stack does not round x for the router. Ranks that share experts call `route`."""
    shape = LayerShape("qwen3_moe", ("affine", 4, 32), width=128, experts=8, chosen=3)
    x = normal((1, 9, shape.width), dtype, seed=1)
    routed = []
    for each in (int8_ops, ops):
        (layer,) = make_layers(shape, 1, dtype, each)
        assert isinstance(layer.mlp, MoE)
        assert isinstance(layer.mlp.w_router, QuantizedTensor)
        routed.append(layer.mlp.route(x, phase=phase))
    for ours, exactly in zip(*routed, strict=True):
        assert same_bits(ours, exactly)


def test_experts_are_multiplied_like_other_weights(int8_ops: OpSet, dtype: mx.Dtype) -> None:
    w = quantize(normal((3, 45, 384), dtype, seed=2), 64, 4)
    experts = [0, 0, 1, 1, 1, *[2] * 20]
    x = normal((len(experts), 384), dtype, seed=1)
    y = int8_ops.expert_linear(x, w, mx.array(experts), phase="decode")
    for row, expert in enumerate(experts):
        alone = int8_ops.linear(x[row : row + 1], w[expert], phase="decode")
        assert same_bits(y[row : row + 1], alone)


@pytest.mark.parametrize("bad", [mx.inf, mx.nan])
def test_nan_and_inf_reach_only_their_own_row(int8_ops: OpSet, dtype: mx.Dtype, bad: float) -> None:
    x, w = normal((7, 384), dtype, seed=1), quantize(normal((45, 384), dtype, seed=2))
    before = int8_ops.linear(x, w)
    x[4, 17] = bad
    after = int8_ops.linear(x, w)
    assert not mx.isfinite(after[4]).any().item()
    others = mx.array([0, 1, 2, 3, 5, 6])
    assert same_bits(after[others], before[others])


@pytest.mark.parametrize("kind", ["dense", "paged", "quantized-8"])
def test_a_native_stack_has_the_bits_of_its_ops(
    int8_ops: OpSet, dtype: mx.Dtype, kind: str
) -> None:
    check_stack(int8_ops, dtype, kind, ("affine", 4, 32))


def test_a_native_stack_in_float32_has_the_bits_of_its_ops(int8_ops: OpSet) -> None:
    check_stack(int8_ops, mx.float32, "dense", ("mxfp4", 4, 32))


def check_stack(int8_ops: OpSet, dtype: mx.Dtype, kind: str, weight_format: WeightFormat) -> None:
    """Compare the native stack with `LayerStack` on the same layers, caches and batches."""
    shape = LayerShape(weight_format=weight_format, width=128, heads=8, hidden=256)
    layers = make_layers(shape, 3, dtype, int8_ops)
    found = []
    for stack in (make_stack(layers, int8_ops), LayerStack(layers)):
        caches = make_caches(kind, 3, shape, dtype)
        found.append(
            [
                stack(make_input(batch, shape.width, dtype, seed=seed), batch, caches)
                for seed, batch in enumerate(make_batches(kind), 50)
            ]
        )
    assert all(same_bits(native, layered) for native, layered in zip(*found, strict=True))


@contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_weights_without_codes_of_4_or_8_bits_are_named(int8_ops: OpSet, dtype: mx.Dtype) -> None:
    assert isinstance(int8_ops, Backend)
    dense = normal((64, 384), dtype, seed=1)
    with pytest.warns(UserWarning, match="expected affine weights of 4 bits with 16-bit scales"):
        int8_ops.prepare({"w": dense})
    weights: dict[str, Weight] = {"w": dense, "q": quantize(dense)}
    with no_warning():
        int8_ops.prepare(weights)
    assert isinstance(weights["q"], QuantizedTensor)
    x = normal((3, 384), dtype, seed=2)
    assert same_bits(int8_ops.linear(x, weights["q"]), int8_ops.linear(x, quantize(dense)))


def test_activations_in_float32_are_named(int8_ops: OpSet) -> None:
    assert isinstance(int8_ops, Backend)
    dense = normal((64, 384), mx.float32, seed=1)
    with pytest.warns(UserWarning, match="cpu-int8: expected activations of 16 bits, got float32"):
        int8_ops.prepare({"norm": dense[0], "q": quantize(dense, 32, 4, "mxfp4")})


def test_plain_kernels_refuse_by_name(ops: OpSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYLLM_CPU_ISA", "portable")
    with pytest.raises(BackendError, match="no products of 8-bit activations for portable"):
        opset("cpu-int8")
