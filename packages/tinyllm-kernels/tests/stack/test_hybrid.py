"""Stacks of Qwen3.5: gated DeltaNet and attention with an output gate, dense and pooled."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_kernels.testing import (
    LayerShape,
    WeightFormat,
    as_reference,
    make_batches,
    make_caches,
    make_input,
    make_layers,
    make_table,
    same_bits,
    stored,
)
from tinyllm_layers import (
    Backend,
    Batch,
    DecoderLayer,
    DenseCache,
    GatedAttention,
    GatedDeltaNet,
    GroupedQueryAttention,
    LayerCache,
    LayerStack,
    PagedCache,
    RecurrentCache,
    RecurrentPool,
    RoPE,
    Stack,
    make_stack,
)
from tinyllm_layers.testing import packed, random_gated_attention, random_gated_delta_net
from tinyllm_ops import NO_STATE, OpSet, StateTable
from tinyllm_ops.testing import assert_close, exact

SLOTS = 6
WEIGHT_FORMATS = [None, ("affine", 4, 32), ("affine", 8, 32)]
SHAPE = LayerShape(head_dim=64)

TABLES = [
    # The states of the passes over pages: two texts, the first with two draft tokens at last.
    StateTable.of([(NO_STATE, 5, {5: 1}), (NO_STATE, 2, {1: 5, 2: 2})], num_slots=SLOTS),
    StateTable.of([(1, 1, {1: 1})], num_slots=SLOTS),
    StateTable.of([(1, 1, {1: 3}), (2, 1, {1: 2})], num_slots=SLOTS),
    StateTable.of([(2, 6, {3: 4, 6: 2}), (3, 2, {2: 3})], num_slots=SLOTS),
    StateTable.of([(2, 1, {1: 0}), (3, 2, {1: 4, 2: 3})], num_slots=SLOTS),
]


class OtherDenseCache(DenseCache):
    """A subclass of a cache, for which the native stack computes attention layers in halves."""


class OtherPagedCache(PagedCache):
    """A subclass of a paged cache, for the same purpose."""


def hybrid(
    kinds: str,
    dtype: mx.Dtype,
    ops: OpSet,
    weight_format: WeightFormat | None = None,
    value_heads: int = 4,
) -> list[DecoderLayer]:
    """Make layers: "d" for gated DeltaNet, "g" for gated attention, "a" for attention."""
    mode, bits, group = weight_format or ("affine", None, 32)
    pack = packed(bits, group, mode)
    layers = []
    for seed, layer in enumerate(
        make_layers(replace(SHAPE, weight_format=weight_format), len(kinds), dtype, ops)
    ):
        mixer: GroupedQueryAttention | GatedAttention | GatedDeltaNet
        attention = layer.mixer
        assert isinstance(attention, GroupedQueryAttention)
        if kinds[seed] == "d":
            mixer = random_gated_delta_net(
                SHAPE.width, 2, value_heads, 128, 32, dtype=dtype, pack=pack, seed=seed, ops=ops
            )
        elif kinds[seed] == "g":
            mixer = random_gated_attention(
                SHAPE.width, 4, 2, 64, 16, dtype=dtype, pack=pack, seed=seed, ops=ops
            )
        else:
            mixer = replace(attention, rope=RoPE(16, 1000, 1e4, ops=ops))
        layers.append(replace(layer, mixer=mixer))
    return layers


def caches_of(
    layers: Sequence[DecoderLayer], kind: str, dtype: mx.Dtype, *, other: bool = False
) -> list[LayerCache]:
    """Make empty caches, "dense" or "paged"; with `other`, those that whole layers do not take."""
    caches: list[LayerCache] = []
    for layer in layers:
        if isinstance(layer.mixer, GatedDeltaNet):
            pool = RecurrentPool.empty(SLOTS, layer.mixer.state_shape)
            caches.append(RecurrentCache() if kind == "dense" else pool)
            continue
        (cache,) = make_caches(kind, 1, SHAPE, dtype)
        if other and isinstance(cache, PagedCache):
            cache = OtherPagedCache(cache.keys, cache.values)
        elif other:
            cache = OtherDenseCache()
        caches.append(cache)
    return caches


def batches_of(kind: str) -> list[Batch]:
    """Return the batches of `make_batches`, with state tables for pages."""
    batches = make_batches(kind)
    if kind == "dense":
        return batches
    batches[3] = Batch.paged(make_table(((4, 0, 11), 3, 9), ((7, 2, 9), 7, 9)), "prefill")
    drafts = make_table(((4, 0, 11), 9, 10), ((7, 2, 9), 9, 10), ((7, 2, 9), 10, 11))
    batches[4] = Batch.paged(drafts, "decode")
    return [replace(batch, state_table=table) for batch, table in zip(batches, TABLES, strict=True)]


def run(
    stack: Stack, kind: str, caches: Sequence[LayerCache], dtype: mx.Dtype, *, wide: bool = False
) -> list[mx.array]:
    """Return the outputs of all passes. With `wide` inputs are converted to float32."""
    found = []
    for seed, batch in enumerate(batches_of(kind), 50):
        x = make_input(batch, SHAPE.width, dtype, seed=seed)
        found.append(stack(x.astype(mx.float32) if wide else x, batch, caches))
    return found


def check_same(
    stacks: tuple[Stack, Stack],
    caches: tuple[Sequence[LayerCache], Sequence[LayerCache]],
    kind: str,
    dtype: mx.Dtype,
) -> None:
    """Check that two stacks give the same bits, and keep equal numbers in their caches."""
    made = [run(stack, kind, own, dtype) for stack, own in zip(stacks, caches, strict=True)]
    assert all(same_bits(a, b) for a, b in zip(*made, strict=True))
    for cache, other in zip(*caches, strict=True):
        pairs = zip(stored(cache), stored(other), strict=True)
        assert all(mx.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("kinds", ["d", "ddda", "dad"])
@pytest.mark.parametrize("kind", ["dense", "paged", "paged-8", "quantized-8"])
@pytest.mark.parametrize("weight_format", WEIGHT_FORMATS, ids=str)
def test_a_stack_gives_the_bits_of_the_layers(
    ops: OpSet, dtype: mx.Dtype, kinds: str, kind: str, weight_format: WeightFormat | None
) -> None:
    layers = hybrid(kinds, dtype, ops, weight_format)
    name = "paged" if kind.startswith("paged") else "dense"
    both = []
    for _ in range(2):
        caches = caches_of(layers, name, dtype)
        for i, layer in enumerate(layers):
            if not isinstance(layer.mixer, GatedDeltaNet):
                (caches[i],) = make_caches(kind, 1, SHAPE, dtype)
        both.append(caches)
    check_same((make_stack(layers, ops), LayerStack(layers)), (both[0], both[1]), name, dtype)


def test_a_primitive_of_recurrent_layers_alone_needs_no_pages(ops: OpSet, dtype: mx.Dtype) -> None:
    layers = hybrid("d" * 15 + "a", dtype, ops)  # a decode step has 14 layers in a primitive
    caches = [caches_of(layers, "paged", dtype) for _ in range(2)]
    check_same(
        (make_stack(layers, ops), LayerStack(layers)), (caches[0], caches[1]), "paged", dtype
    )


@pytest.mark.parametrize("kind", ["dense", "paged"])
def test_whole_layers_give_the_bits_of_halves(ops: OpSet, dtype: mx.Dtype, kind: str) -> None:
    """The output gate is the same kernel in both paths."""
    layers = hybrid("ddgg", dtype, ops)
    stack = make_stack(layers, ops)
    caches = [caches_of(layers, kind, dtype, other=other) for other in (False, True)]
    check_same((stack, stack), (caches[0], caches[1]), kind, dtype)


@pytest.mark.parametrize("kind", ["dense", "paged"])
@pytest.mark.parametrize("weight_format", WEIGHT_FORMATS, ids=str)
@pytest.mark.parametrize("value_heads", [2, 4])
def test_a_stack_is_near_the_reference_in_float32(
    ops: OpSet, dtype: mx.Dtype, kind: str, weight_format: WeightFormat | None, value_heads: int
) -> None:
    layers = hybrid("dg", dtype, ops, weight_format, value_heads)
    wide = [as_reference(layer) for layer in layers]
    found = run(make_stack(layers, ops), kind, caches_of(layers, kind, dtype), dtype)
    expected = run(LayerStack(wide), kind, caches_of(wide, kind, mx.float32), dtype, wide=True)
    for y, reference in zip(found, expected, strict=True):
        assert_close(y, exact(reference))


def test_caches_with_tables_of_their_own(ops: OpSet, dtype: mx.Dtype) -> None:
    """Layers whose caches keep different lengths load and save other slots in one pass."""
    layers = hybrid("dd", dtype, ops)
    stacks = make_stack(layers, ops), LayerStack(layers)
    made = []
    for stack in stacks:
        caches = caches_of(layers, "dense", dtype)
        x = make_input(Batch.at(0, 2, 9), SHAPE.width, dtype, seed=1)
        stack(x[:, :8], Batch.at(0, 2, 8), caches)
        stack(x[:, 8:], Batch.at(8, 2, 1), caches)
        second = caches[1]
        assert isinstance(second, RecurrentCache)
        second.trim(8)  # the next pass loads another slot in this layer than in the first
        # Only an array of positions may differ from the lengths of the caches.
        made.append(stack(x[:, :1], Batch("decode", 2, 1, mx.array([[9], [9]])), caches))
    assert same_bits(*made)


def addresses(caches: Sequence[LayerCache]) -> list[int]:
    """Return the memory address of each array."""
    arrays = [array for cache in caches for array in cache.arrays]
    mx.eval(arrays)
    return [np.array(array.view(mx.uint8), copy=False).ctypes.data for array in arrays]


@pytest.mark.parametrize("kind", ["dense", "paged"])
def test_decode_steps_write_in_place(ops: Backend, dtype: mx.Dtype, kind: str) -> None:
    layers = hybrid("ddgd", dtype, ops)
    stack, caches = make_stack(layers, ops), caches_of(layers, kind, dtype)
    steps = [Batch.at(at, 2, 1) for at in range(6)]
    if kind == "paged":
        tables = [make_table(((7, 2), at, at + 1), ((4, 0), at, at + 1)) for at in range(6)]
        states = StateTable.of([(1, 1, {1: 1}), (4, 1, {1: 4})], num_slots=SLOTS)
        steps = [Batch.paged(table, "decode", states) for table in tables]
    mx.eval(stack(make_input(steps[0], SHAPE.width, dtype, seed=1), steps[0], caches))
    places = [addresses(caches)]
    for batch in steps[1:]:
        mx.eval(stack(make_input(batch, SHAPE.width, dtype, seed=2), batch, caches))
        places.append(addresses(caches))
    assert all(a == b for a, b in pairwise(places))


def test_a_text_has_equal_bits_beside_others_and_in_chunks(ops: OpSet, dtype: mx.Dtype) -> None:
    layers = hybrid("ddg", dtype, ops)
    stack = make_stack(layers, ops)
    x = make_input(Batch.at(0, 3, 40), SHAPE.width, dtype, seed=1)
    caches = caches_of(layers, "dense", dtype)
    together = stack(x, Batch.at(0, 3, 40), caches)
    alone = caches_of(layers, "dense", dtype)
    parts = [
        stack(x[1:2, first:stop], Batch.at(first, 1, stop - first, "prefill"), alone)
        for first, stop in ((0, 3), (3, 4), (4, 40))
    ]
    assert same_bits(mx.concatenate(parts, axis=1), together[1:2])


def test_states_of_other_shapes_are_refused(ops: OpSet) -> None:
    layers = hybrid("d", mx.float32, ops)
    (layer,) = layers
    assert isinstance(layer.mixer, GatedDeltaNet)
    stack = make_stack(layers, ops)
    batch = batches_of("paged")[0]
    x = make_input(batch, SHAPE.width, mx.float32, seed=1)
    shape = layer.mixer.state_shape
    pools = {
        "P K-1 C": RecurrentPool.empty(SLOTS, replace(shape, channels=9)),
        "P Hv Dv Dk": RecurrentPool.empty(SLOTS, replace(shape, key_dim=9)),
    }
    for expected, pool in pools.items():
        with pytest.raises(ValueError, match=expected):
            stack(x, batch, [pool])
    with pytest.raises(ValueError, match="expected a state table"):
        stack(x, replace(batch, state_table=None), [RecurrentPool.empty(SLOTS, shape)])
