"""Every stack gives the numbers of `LayerStack`, over every kind of cache, phase and weight."""

import functools
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from tinyllm_kernels.testing import (
    LayerShape,
    WeightFormat,
    as_reference,
    make_batches,
    make_caches,
    make_input,
    make_layers,
    same_bits,
    stored,
)
from tinyllm_layers import (
    Batch,
    DecoderLayer,
    DenseCache,
    LayerCache,
    LayerStack,
    PagedCache,
    QuantizedCache,
    Stack,
    make_stack,
)
from tinyllm_layers.cache.dense import CAPACITY_STEP, GrowingCache
from tinyllm_layers.testing import Family
from tinyllm_ops import REFERENCE, OpSet, Yarn
from tinyllm_ops.testing import assert_close, exact

WEIGHT_FORMATS = [None, ("affine", 4, 32), ("affine", 8, 32), ("mxfp4", 4, 32)]
CACHES = ["dense", "rotating", "quantized-8", "paged", "paged-8", "paged-4", "window-3"]


class OtherDenseCache(DenseCache):
    """A subclass of a cache, for which the native stack computes layers in halves."""


class OtherQuantizedCache(QuantizedCache):
    """A subclass of a quantized cache, for the same purpose as `OtherDenseCache`."""


class OtherPagedCache(PagedCache):
    """A subclass of a paged cache, for the same purpose as `OtherDenseCache`."""


def run(
    stack: Stack, kind: str, caches: Sequence[LayerCache], shape: LayerShape, dtype: mx.Dtype
) -> list[mx.array]:
    """Return the outputs of all passes over `caches`. A stack of REFERENCE gets float32 inputs."""
    found = []
    for seed, batch in enumerate(make_batches(kind), 50):
        x = make_input(batch, shape.width, dtype, seed=seed)
        is_reference = isinstance(stack, LayerStack) and stack.layers[0].mlp.ops is REFERENCE
        found.append(stack(x.astype(mx.float32) if is_reference else x, batch, caches))
    return found


@functools.cache
def reference_outputs(
    shape: LayerShape, count: int, kind: str, dtype: mx.Dtype
) -> list[NDArray[np.float64]]:
    """Return the outputs of `REFERENCE` in float32, cached for tests of all instruction sets."""
    layers = make_layers(shape, count, dtype, REFERENCE)
    reference = LayerStack([as_reference(layer) for layer in layers])
    outputs = run(reference, kind, make_caches(kind, count, shape, mx.float32), shape, dtype)
    return [exact(y) for y in outputs]


def check_same(
    stacks: tuple[Stack, Stack],
    caches: tuple[Sequence[LayerCache], Sequence[LayerCache]],
    kind: str,
    shape: LayerShape,
    dtype: mx.Dtype,
) -> None:
    """Check that two stacks give the same bits, and store equal numbers in their caches."""
    made = [run(stack, kind, own, shape, dtype) for stack, own in zip(stacks, caches, strict=True)]
    assert all(same_bits(a, b) for a, b in zip(*made, strict=True))
    for cache, other in zip(*caches, strict=True):
        pairs = zip(stored(cache), stored(other), strict=True)
        assert all(mx.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("kind", [*CACHES, "quantized-6", "paged-6"])
@pytest.mark.parametrize("weight_format", WEIGHT_FORMATS, ids=str)
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_stack_of_dense_layers_gives_the_bits_of_the_layers(
    ops: OpSet, dtype: mx.Dtype, family: Family, weight_format: WeightFormat | None, kind: str
) -> None:
    shape = LayerShape(family, weight_format)
    layers = make_layers(shape, 2, dtype, ops)
    stacks = make_stack(layers, ops), LayerStack(layers)
    caches = make_caches(kind, 2, shape, dtype), make_caches(kind, 2, shape, dtype)
    check_same(stacks, caches, kind, shape, dtype)


@pytest.mark.parametrize(
    "shape",
    [
        LayerShape("qwen2", None, width=37, heads=3, kv_heads=1, head_dim=10, hidden=91),
        LayerShape("qwen3", None, width=48, heads=6, kv_heads=6, head_dim=24, hidden=16),
        LayerShape("qwen3", traditional=True),
        LayerShape("qwen3", scaling=Yarn(4.0, 64)),
        # Rows of 512 numbers get a gap where AMX reads them.
        LayerShape("qwen2", None, width=512, heads=8, kv_heads=4, head_dim=128, hidden=512),
        LayerShape(
            "qwen3",
            ("affine", 4, 64),
            width=512,
            heads=16,
            kv_heads=8,
            head_dim=64,
            hidden=512,
        ),
    ],
    ids=["odd", "head_dim-24", "traditional", "yarn", "gaps", "gaps-4-bits"],
)
@pytest.mark.parametrize("kind", ["dense", "paged"])
def test_inconvenient_sizes_and_other_rotations(
    ops: OpSet, dtype: mx.Dtype, shape: LayerShape, kind: str
) -> None:
    layers = make_layers(shape, 2, dtype, ops)
    stacks = make_stack(layers, ops), LayerStack(layers)
    caches = make_caches(kind, 2, shape, dtype), make_caches(kind, 2, shape, dtype)
    check_same(stacks, caches, kind, shape, dtype)


@pytest.mark.parametrize("kind", ["dense", "rotating", "paged", "window-3"])
@pytest.mark.parametrize("weight_format", [None, ("affine", 4, 32)], ids=str)
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_stack_is_near_the_reference_in_float32(
    ops: OpSet, dtype: mx.Dtype, family: Family, weight_format: WeightFormat | None, kind: str
) -> None:
    shape = LayerShape(family, weight_format)
    stack = make_stack(make_layers(shape, 2, dtype, ops), ops)
    made = run(stack, kind, make_caches(kind, 2, shape, dtype), shape, dtype)
    for y, expected in zip(made, reference_outputs(shape, 2, kind, dtype), strict=True):
        assert y.dtype == dtype
        assert_close(y, expected)


@pytest.mark.parametrize("kind", ["dense", "paged"])
@pytest.mark.parametrize("weight_format", WEIGHT_FORMATS, ids=str)
def test_a_mixture_of_experts_is_near_its_layer_and_the_reference(
    ops: OpSet, dtype: mx.Dtype, weight_format: WeightFormat | None, kind: str
) -> None:
    shape = LayerShape("qwen3_moe", weight_format)
    layers = make_layers(shape, 1, dtype, ops)
    made, singly = (
        run(stack, kind, make_caches(kind, 1, shape, dtype), shape, dtype)
        for stack in (make_stack(layers, ops), LayerStack(layers))
    )
    expected = reference_outputs(shape, 1, kind, dtype)
    for y, other, near in zip(made, singly, expected, strict=True):
        assert_close(y, exact(other))
        assert_close(y, near)


@pytest.mark.parametrize("kind", ["dense", "quantized-4", "paged"])
@pytest.mark.parametrize(("family", "count"), [("qwen3_moe", 3), ("qwen3", 17)])
def test_whole_layers_give_the_bits_of_their_halves(
    ops: OpSet, dtype: mx.Dtype, family: Family, count: int, kind: str
) -> None:
    """A run of 17 layers needs two primitives. In `mixed`, another class of cache cuts the run."""
    shape = LayerShape(family, ("affine", 8, 32))
    stack = make_stack(make_layers(shape, count, dtype, ops), ops)
    whole, halves, mixed = (make_caches(kind, count, shape, dtype) for _ in range(3))
    halves = [other(cache) for cache in halves]
    mixed[1] = other(mixed[1])
    check_same((stack, stack), (whole, halves), kind, shape, dtype)
    check_same((stack, stack), (make_caches(kind, count, shape, dtype), mixed), kind, shape, dtype)


def other(cache: LayerCache) -> LayerCache:
    """Return an empty cache like `cache`, of a subclass."""
    if isinstance(cache, PagedCache):
        return OtherPagedCache(cache.keys, cache.values, cache.window)
    if isinstance(cache, QuantizedCache):
        return OtherQuantizedCache(cache.bits, cache.group_size)
    return OtherDenseCache()


@pytest.mark.parametrize("kind", ["dense", "quantized-8"])
@pytest.mark.parametrize("length", [1, 3])
def test_caches_may_have_other_capacities(ops: OpSet, kind: str, length: int) -> None:
    """As after an interrupt between two layers of a pass in which the caches grow."""
    shape, batch = LayerShape(), Batch.at(2, 2, length)
    layers = make_layers(shape, 3, mx.bfloat16, ops)
    made = []
    for stack in (make_stack(layers, ops), LayerStack(layers)):
        caches = make_caches(kind, 3, shape, mx.bfloat16)
        for tokens, changed in ((CAPACITY_STEP + 1, caches[1:2]), (2, caches)):
            zeros = mx.zeros((2, shape.kv_heads, tokens, shape.head_dim), mx.bfloat16)
            for cache in changed:
                assert isinstance(cache, GrowingCache)
                cache.trim(0)
                cache.update(zeros, zeros)
        x = make_input(batch, shape.width, mx.bfloat16, seed=1)
        made.append(stack(x, batch, caches))
    assert same_bits(*made)


@pytest.mark.parametrize("kind", ["dense", "quantized-4"])
def test_capacity_without_tokens_is_not_read(ops: OpSet, kind: str) -> None:
    shape = LayerShape()
    stack = make_stack(make_layers(shape, 2, mx.bfloat16, ops), ops)
    made = []
    for poison in (0, float("nan")):
        caches, outputs = make_caches(kind, 2, shape, mx.bfloat16), []
        for batch in (Batch.at(0, 2, 5), Batch.at(5, 2, 1), Batch.at(6, 2, 3), Batch.at(9, 2, 1)):
            x = make_input(batch, shape.width, mx.bfloat16, seed=batch.length)
            outputs.append(stack(x, batch, caches))
            for cache in caches:
                assert isinstance(cache, GrowingCache)
                arrays = [array[...] for array in cache.arrays]
                for array in arrays:
                    is_code = array.dtype == mx.uint32
                    array[..., cache.offset :, :] = 0x77777777 if is_code and poison else poison
                cache.commit(arrays, 0)
        made.append(outputs)
    assert all(same_bits(a, b) for a, b in zip(*made, strict=True))


@pytest.mark.parametrize("offsets", [[3, 3], [3, 1]])
def test_rows_may_stand_at_positions_of_their_own(
    ops: OpSet, dtype: mx.Dtype, offsets: list[int]
) -> None:
    shape = LayerShape()
    layers = make_layers(shape, 2, dtype, ops)
    x = make_input(Batch.at(0, 2, 4), shape.width, dtype, seed=3)
    stacks = make_stack(layers, ops), LayerStack(layers)
    batch = Batch("prefill", 2, 4, mx.array(offsets)[:, None] + mx.arange(4))
    made = [stack(x, batch, make_caches("dense", 2, shape, dtype)) for stack in stacks]
    assert same_bits(*made)


def test_layers_of_several_kinds_in_one_stack(ops: OpSet, dtype: mx.Dtype) -> None:
    layers: list[DecoderLayer] = []
    for family in ("qwen2", "qwen3", "qwen2"):
        layers += make_layers(LayerShape(family), 1, dtype, ops)
    shape = LayerShape()
    kinds = ["dense", "quantized-8", "dense"]
    stacks = make_stack(layers, ops), LayerStack(layers)
    caches = [[make_caches(kind, 1, shape, dtype)[0] for kind in kinds] for _ in stacks]
    check_same(stacks, (caches[0], caches[1]), "dense", shape, dtype)


def test_a_view_is_read_as_it_is(ops: OpSet, dtype: mx.Dtype) -> None:
    shape = LayerShape("qwen2")
    layers = make_layers(shape, 1, dtype, ops)
    wide = make_input(Batch.at(0, 2, 6), 128, dtype, seed=6)
    x, batch = wide[:, 1:4, ::2], Batch.at(0, 2, 3)
    made = make_stack(layers, ops)(x, batch, make_caches("dense", 1, shape, dtype))
    assert same_bits(made, LayerStack(layers)(x, batch, make_caches("dense", 1, shape, dtype)))


def test_tokens_that_repeat_one_number_are_kept(ops: OpSet) -> None:
    """Only a cache without tokens may leave its memory undefined."""
    shape, batch = LayerShape(), Batch.at(3, 2, 1)
    layers = make_layers(shape, 2, mx.float32, ops)
    x = make_input(batch, shape.width, mx.float32, seed=1)
    results = []
    for stack in (make_stack(layers, ops), LayerStack(layers)):
        caches = make_caches("dense", 2, shape, mx.float32)
        for cache in caches:
            assert isinstance(cache, DenseCache)
            size = (2, 2, shape.kv_heads, CAPACITY_STEP, shape.head_dim)
            cache.commit([mx.broadcast_to(mx.array(1.0), size)], 3)
        results.append(stack(x, batch, caches))
    assert same_bits(*results)


@pytest.mark.parametrize("kind", ["dense", "paged"])
def test_no_tokens_change_nothing(ops: OpSet, kind: str) -> None:
    shape = LayerShape()
    caches = make_caches(kind, 2, shape, mx.float32)
    batch = make_batches(kind)[0]
    stack = make_stack(make_layers(shape, 2, mx.float32, ops), ops)
    stack(make_input(batch, shape.width, mx.float32, seed=1), batch, caches)
    before = [mx.array(array) for cache in caches for array in stored(cache)]
    empty = Batch("prefill", 2, 0, slice(5, 5), None)
    if kind == "dense":
        assert stack(mx.zeros((2, 0, 64)), empty, caches).shape == (2, 0, 64)
    after = [array for cache in caches for array in stored(cache)]
    assert all(mx.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert make_stack([], ops)(mx.ones((1, 2, 8)), Batch.at(0, 1, 2), []).shape == (1, 2, 8)
