"""Stacks write keys and values in place, unless another object refers to the arrays."""

from collections.abc import Sequence
from types import ModuleType

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_kernels import opset
from tinyllm_kernels.testing import (
    NUM_PAGES,
    LayerShape,
    make_batches,
    make_caches,
    make_input,
    make_layers,
    make_table,
    same_bits,
)
from tinyllm_layers import Backend, Batch, LayerCache, make_stack

LAYERS = 3


def addresses(caches: Sequence[LayerCache]) -> list[int]:
    """Return the memory address of each array of keys and values."""
    arrays = [array for cache in caches for array in cache.arrays]
    mx.eval(arrays)
    return [np.array(array.view(mx.uint8), copy=False).ctypes.data for array in arrays]


def decode_steps(kind: str) -> list[Batch]:
    """Return the batches of six decode steps, each with one token of two sequences."""
    if kind in ("dense", "quantized-8"):
        return [Batch.at(offset, 2, 1) for offset in range(6)]
    return [
        Batch.paged(make_table(((7, 2), at, at + 1), ((4, 0), at, at + 1)), "decode")
        for at in range(6)
    ]


@pytest.mark.parametrize("kind", ["dense", "quantized-8", "paged", "paged-8"])
def test_decode_steps_write_in_place(ops: Backend, kind: str) -> None:
    shape, dtype = LayerShape(), mx.bfloat16
    stack = make_stack(make_layers(shape, LAYERS, dtype, ops), ops)
    caches = make_caches(kind, LAYERS, shape, dtype)
    first, *others = decode_steps(kind)
    mx.eval(stack(make_input(first, shape.width, dtype, seed=1), first, caches))
    before = addresses(caches)
    for batch in others:
        mx.eval(stack(make_input(batch, shape.width, dtype, seed=2), batch, caches))
        assert addresses(caches) == before


@pytest.mark.parametrize("kind", ["dense", "quantized-8"])
def test_a_new_cache_is_not_copied(native: ModuleType, kind: str) -> None:
    shape, dtype, ops = LayerShape(), mx.bfloat16, opset("cpu")
    stack = make_stack(make_layers(shape, LAYERS, dtype, ops), ops)
    copied = native.copied_bytes()
    for batch in (Batch.at(0, 2, 5), Batch.at(0, 2, 1)):
        caches = make_caches(kind, LAYERS, shape, dtype)
        mx.eval(stack(make_input(batch, shape.width, dtype, seed=1), batch, caches))
    assert native.copied_bytes() == copied


def test_a_prompt_into_pages_takes_no_second_copy_of_them(ops: Backend) -> None:
    shape, dtype = LayerShape(head_dim=128), mx.float32
    stack = make_stack(make_layers(shape, 4, dtype, ops), ops)
    caches = make_caches("paged", 4, shape, dtype)
    batch = make_batches("paged")[0]
    x = make_input(batch, shape.width, dtype, seed=1)
    mx.eval(x, stack(x, batch, caches), *(cache.arrays for cache in caches))
    bytes_of_layer = caches[0].nbytes
    active = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(stack(x, batch, caches), *(cache.arrays for cache in caches))
    assert mx.get_peak_memory() - active < bytes_of_layer


@pytest.mark.parametrize("kind", ["dense", "quantized-8", "paged", "paged-8"])
def test_arrays_with_other_holders_are_not_written(ops: Backend, kind: str) -> None:
    shape, dtype = LayerShape(), mx.float32
    stack = make_stack(make_layers(shape, 2, dtype, ops), ops)
    caches = make_caches(kind, 2, shape, dtype)
    first, second, *_ = decode_steps(kind)
    x = make_input(first, shape.width, dtype, seed=1)
    mx.eval(stack(x, first, caches))
    held = [array for cache in caches for array in cache.arrays]
    # Bytes, because what lies beyond the tokens of a dense cache is undefined, and may be NaN.
    before = [np.array(array).tobytes() for array in held]
    forks = [cache.fork() for cache in caches]  # type: ignore[attr-defined]
    y = stack(x, second, caches)
    mx.eval(y, *(cache.arrays for cache in caches))
    assert [np.array(array).tobytes() for array in held] == before
    assert same_bits(stack(x, second, forks), y)


def test_copies_of_a_cache_are_counted_and_logged_once(
    native: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    shape, dtype, ops = LayerShape(), mx.float32, opset("cpu")
    stack = make_stack(make_layers(shape, 2, dtype, ops), ops)
    caches = make_caches("paged", 2, shape, dtype)
    first, *others = decode_steps("paged")
    x = make_input(first, shape.width, dtype, seed=1)
    mx.eval(stack(x, first, caches))
    before = native.copied_bytes()
    mx.eval(stack(x, others[0], caches))
    assert native.copied_bytes() == before
    for batch in others[1:]:
        forks = [cache.fork() for cache in caches]  # type: ignore[attr-defined]
        mx.eval(stack(x, batch, caches), *(cache.arrays for cache in forks))
    assert native.copied_bytes() - before == 4 * sum(cache.nbytes for cache in caches)
    assert [record.name for record in caplog.records] == ["tinyllm_kernels"]
    assert "caches: expected writes in place, got copies of" in caplog.text


def test_only_the_slots_of_the_pages_are_written(ops: Backend, dtype: mx.Dtype) -> None:
    shape = LayerShape()
    stack = make_stack(make_layers(shape, 1, dtype, ops), ops)
    caches = make_caches("paged", 1, shape, dtype)
    batch = Batch.paged(make_table(((7, 2), 0, 6)), "prefill")
    mx.eval(stack(make_input(batch, shape.width, dtype, seed=1), batch, caches))
    for array in caches[0].arrays:
        written = (array != 0).any(axis=(1, 3))  # P page
        expected = np.zeros((NUM_PAGES, 4), bool)
        expected[7], expected[2, :2] = True, True
        assert np.array_equal(np.array(written), expected)


def test_preparing_weights_changes_no_bit(ops: Backend) -> None:
    """Rows are interleaved and moved to huge pages. Codes are larger than a huge page of 2 MB."""
    shape = LayerShape(
        weight_format=("affine", 8, 64), width=1024, hidden=3072, heads=8, head_dim=64
    )
    (layer,) = make_layers(shape, 1, mx.bfloat16, ops)
    batch = Batch.at(0, 2, 3)
    x = make_input(batch, shape.width, mx.bfloat16, seed=3)

    def output() -> mx.array:
        caches = make_caches("dense", 1, shape, mx.bfloat16)
        return make_stack([layer], ops)(x, batch, caches)

    before = output()
    names = ("w_gate", "w_up", "w_down")
    weights = {name: getattr(layer.mlp, name) for name in names}
    ops.prepare(weights)
    mlp = layer.mlp
    layer = type(layer)(
        layer.input_norm,
        layer.mixer,
        layer.post_attention_norm,
        type(mlp)(mlp.dim, mlp.hidden_dim, *(weights[name] for name in names), ops=ops),
    )
    assert same_bits(before, output())
