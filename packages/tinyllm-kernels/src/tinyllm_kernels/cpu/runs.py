"""The computation of consecutive layers that share a `Path`: whole layers, or halves of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import mlx.core as mx
from jaxtyping import Float
from tinyllm_layers import Batch, DenseCache, LayerCache, PagedCache
from tinyllm_ops import PageTable, Weight

from tinyllm_kernels import _cpu as native
from tinyllm_kernels.cpu.arguments import (
    native_weight,
    page_table_arrays,
    position_rows,
    weight_arrays,
    with_arrays,
)
from tinyllm_kernels.cpu.handles import LayerHandle

LAYERS_PER_PRIMITIVE = 14
"""The largest number of layers in one primitive of MLX. MLX prepares all inputs of a primitive
before its first layer starts, while the threads wait. On 28 layers, two primitives were measured to
be faster than one and than four."""

C = TypeVar("C", bound=LayerCache)


def run_dense(
    x: Float[mx.array, "B L E"],
    batch: Batch,
    handles: Sequence[LayerHandle],
    caches: Sequence[DenseCache],
    offset: int,
) -> Float[mx.array, "B L E"]:
    """Compute whole layers, each with a dense cache of `offset` tokens."""
    for group, stores in _groups(handles, caches):
        x = _dense_group(x, batch, group, stores, offset)
    return x


def run_paged(
    x: Float[mx.array, "B L E"],
    batch: Batch,
    table: PageTable,
    handles: Sequence[LayerHandle],
    caches: Sequence[PagedCache],
    window: int | None,
) -> Float[mx.array, "B L E"]:
    """Compute whole layers, each with a paged cache. All caches have the same window."""
    for group, stores in _groups(handles, caches):
        x = _paged_group(x, batch, table, group, stores, window)
    return x


def run_halves(
    x: Float[mx.array, "B L E"], batch: Batch, handle: LayerHandle, cache: LayerCache
) -> Float[mx.array, "B L E"]:
    """Compute a layer: native projections and MLP or MoE, and the attention of `cache` in between.

    If processes share the layer, rank 0 adds bias and residual, and each half is all-reduced.
    """
    layer, phase = handle.layer, batch.phase
    attention, mlp = layer.attention, layer.mlp
    positions = position_rows(batch.positions, batch.rows, batch.length)
    q, k, v = native.project_qkv(x, handle.attention, positions, phase)
    out = cache.attend(q, k, v, batch, attention.scale, attention.ops)
    joined = out.swapaxes(1, 2).flatten(2)  # B L H*D
    # Rank 0 alone adds bias and residual: the all-reduce would add them once for each rank.
    is_rank_0 = attention.communicator.rank == 0
    bias, residual = (attention.biases.o, x) if is_rank_0 else (None, None)
    y = native.linear(joined, handle.output, bias, residual, phase)
    h = attention.communicator.all_reduce(y)
    if handle.feed_forward is None:
        return mlp(layer.post_attention_norm(h), residual=h, phase=phase)
    return mlp.communicator.all_reduce(native.feed_forward(h, handle.feed_forward, phase))


def _groups(
    handles: Sequence[LayerHandle], caches: Sequence[C]
) -> Iterator[tuple[Sequence[LayerHandle], Sequence[C]]]:
    """Cut a run into groups of at most `LAYERS_PER_PRIMITIVE` layers."""
    for first in range(0, len(handles), LAYERS_PER_PRIMITIVE):
        group = slice(first, first + LAYERS_PER_PRIMITIVE)
        yield handles[group], caches[group]


def _dense_group(
    x: mx.array,
    batch: Batch,
    handles: Sequence[LayerHandle],
    caches: Sequence[DenseCache],
    offset: int,
) -> mx.array:
    """Compute the layers of one primitive.

    The references to the cache arrays end with this function, so that MLX writes to the arrays in
    place.
    """
    cached: list[mx.array] = []
    for handle, cache in zip(handles, caches, strict=True):
        attention = handle.layer.attention
        new_shape = (batch.rows, attention.num_kv_heads, batch.length, attention.head_dim)
        cached += cache.reserve(new_shape, x.dtype)
    y, *written = native.layers(
        x,
        [handle.attention for handle in handles],
        _feed_forwards(handles),
        cached,
        offset,
        batch.phase,
    )
    for cache, keys, values in zip(caches, written[::2], written[1::2], strict=True):
        cache.commit(keys, values, batch.length)
    return y


def _paged_group(
    x: mx.array,
    batch: Batch,
    table: PageTable,
    handles: Sequence[LayerHandle],
    caches: Sequence[PagedCache],
    window: int | None,
) -> mx.array:
    """Compute the layers of one primitive over pages; see `_dense_group` for the cache arrays."""
    positions = position_rows(batch.positions, batch.rows, batch.length)
    cached: list[Weight] = [pages for cache in caches for pages in (cache.keys, cache.values)]
    y, *arrays = native.paged_layers(
        x,
        [handle.attention for handle in handles],
        _feed_forwards(handles),
        [native_weight(pages) for pages in cached],
        page_table_arrays(table, positions.reshape(-1)),
        window or 0,
        batch.phase,
    )
    rest = iter(arrays)
    written = [with_arrays(pages, [next(rest) for _ in weight_arrays(pages)]) for pages in cached]
    for cache, keys, values in zip(caches, written[::2], written[1::2], strict=True):
        cache.commit(keys, values)
    return y


def _feed_forwards(handles: Sequence[LayerHandle]) -> list[native.FeedForwardHandle]:
    """Return the native MLP or MoE of each layer. Whole layers always have one."""
    return [handle.feed_forward for handle in handles if handle.feed_forward is not None]
