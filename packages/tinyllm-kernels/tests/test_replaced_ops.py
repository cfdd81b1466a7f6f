"""Layers call a replaced op, and fusions that stand for the op are dropped."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_kernels import available, opset
from tinyllm_kernels.testing import (
    LayerShape,
    make_batches,
    make_caches,
    make_input,
    make_layers,
    same_bits,
)
from tinyllm_layers import Backend, Embedding, LayerStack, make_stack
from tinyllm_ops import MLX, REFERENCE, Fusion, OpSet, norm_rope

BACKENDS = [status.name for status in available() if status.present]
OF_LAYERS = [
    "linear",
    "expert_linear",
    "softmax",
    "swiglu",
    "rms_norm",
    "rope",
    "attention",
    "paged_attention",
    "quantize",
]
OF_RECURRENT_LAYERS = ["causal_conv", "gated_delta", "gated_rms_norm"]
OF_SAMPLERS = ["embedding", "argmax", "top_k", "log_probability"]


def forward_passes(ops: OpSet) -> list[mx.array]:
    """Return logits of passes through layers of every family, with several kinds of caches."""
    found = []
    for family, kind in (("qwen3_moe", "dense"), ("qwen3", "paged"), ("qwen2", "quantized-8")):
        shape = LayerShape(family)  # type: ignore[arg-type]
        stack = make_stack(make_layers(shape, 2, mx.float32, ops), ops)
        caches = make_caches(kind, 2, shape, mx.float32)
        table = Embedding(
            50, shape.width, mx.random.normal((50, 64), key=mx.random.key(1)), ops=ops
        )
        for seed, batch in enumerate(make_batches(kind)):
            ids = mx.zeros((batch.rows, batch.length), mx.int32)
            x = table(ids) + make_input(batch, shape.width, mx.float32, seed=seed)
            found.append(table.as_linear(stack(x, batch, caches)))
    return found


@cache
def unreplaced_passes(backend: str) -> list[mx.array]:
    """Return the passes with all ops of a backend, cached for the tests of its ops."""
    return forward_passes(opset(backend))


def expected_warning(ops: OpSet, name: str) -> AbstractContextManager[object]:
    """Expect a warning if a fusion of the OpSet stands for the op."""
    fusions = [
        field.name
        for field in fields(ops)
        if isinstance(fusion := getattr(ops, field.name), Fusion) and name in fusion.of
    ]
    return pytest.warns(UserWarning, match=f"{name} replaced, so") if fusions else nullcontext()


def test_every_op_is_covered() -> None:
    names = {field.name for field in fields(OpSet)} - {"name", "norm_rope"}
    assert names == {*OF_LAYERS, *OF_RECURRENT_LAYERS, *OF_SAMPLERS}


@pytest.mark.parametrize("name", [*OF_LAYERS, "embedding"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_replaced_op_is_called(backend: str, name: str) -> None:
    ops = opset(backend)
    original: Callable[..., object] = getattr(ops, name)
    calls = []

    def counting(*arguments: Any, **options: Any) -> object:
        calls.append(name)
        return original(*arguments, **options)

    with expected_warning(ops, name):
        replaced = replace(ops, **{name: counting})  # type: ignore[arg-type]
    made = forward_passes(replaced)
    assert calls
    # Without its native stack, the CPU rounds mixtures of experts differently.
    if backend not in ("cpu", "cpu-int8"):
        assert all(same_bits(a, b) for a, b in zip(made, unreplaced_passes(backend), strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fusion_of_norm_and_rotation_is_called(backend: str) -> None:
    ops, calls = opset(backend), []

    def fused(*arguments: Any) -> mx.array:
        calls.append(arguments)
        # `NormRope` accepts the arguments of `norm_rope` without `ops`.
        return norm_rope(replace(REFERENCE, norm_rope=None), *arguments)

    fusion = Fusion(fused, of=("rms_norm", "rope"))
    with expected_warning(ops, "norm_rope"):
        replaced = replace(ops, norm_rope=fusion)  # type: ignore[arg-type]
    forward_passes(replaced)
    assert calls


@pytest.mark.parametrize("name", [*OF_LAYERS, *OF_RECURRENT_LAYERS, "norm_rope", *OF_SAMPLERS])
def test_the_native_stack_is_dropped_for_ops_that_it_computes(ops: Backend, name: str) -> None:
    assert ops.stack is not None
    original = Fusion(lambda *_: None, of=()) if name == "norm_rope" else getattr(ops, name)
    other = original if name == "norm_rope" else partial(original)  # type: ignore[arg-type, misc]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        replaced = replace(ops, **{name: other})  # type: ignore[arg-type]
    computes = name not in OF_SAMPLERS
    assert len(caught) == computes
    assert (replaced.stack is None) == computes
    assert replaced.prepare is ops.prepare


def test_layers_with_a_replaced_op_run_it_beside_others(ops: Backend) -> None:
    """A stack may have layers of several OpSets. Each layer computes with its own OpSet."""
    shape, calls = LayerShape(), []

    def swiglu(gate: mx.array, up: mx.array) -> mx.array:
        calls.append(gate)
        return ops.swiglu(gate, up)

    with pytest.warns(UserWarning, match="swiglu replaced"):
        replaced = replace(ops, swiglu=swiglu)
    layers = make_layers(shape, 3, mx.float32, ops)
    layers[1] = make_layers(shape, 2, mx.float32, replaced)[1]
    batch = make_batches("dense")[0]
    x = make_input(batch, shape.width, mx.float32, seed=1)
    y = make_stack(layers, ops)(x, batch, make_caches("dense", 3, shape, mx.float32))
    assert len(calls) == 1
    expected = LayerStack(make_layers(shape, 3, mx.float32, ops))
    assert same_bits(y, expected(x, batch, make_caches("dense", 3, shape, mx.float32)))


def test_the_ops_of_mlx_and_of_the_reference_have_no_stack() -> None:
    for ops in (MLX, REFERENCE):
        assert isinstance(make_stack([], ops), LayerStack)
