"""The computation of consecutive layers that share a `Path`: whole layers, or halves of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx
from jaxtyping import Float
from tinyllm_layers import Batch, DenseCache, LayerCache, PagedCache
from tinyllm_layers.cache.base import attention_cache
from tinyllm_ops import Phase, Weight

from tinyllm_kernels import _cpu as native
from tinyllm_kernels.cpu.arguments import page_table_arrays, position_rows, with_arrays
from tinyllm_kernels.cpu.handles import LayerHandle

LAYERS_PER_PRIMITIVE = 14
"""The largest number of layers in one primitive of MLX, for decode steps. MLX prepares all inputs
of a primitive before its first layer starts, while the threads wait. On 28 layers, two primitives
were measured to be faster than one and than four. All layers of a prompt are one primitive, because
a prompt takes much longer than that preparation."""


@dataclass(frozen=True, eq=False)
class LayerGroup:
    """Consecutive layers that one primitive computes.

    Attributes:
        native: the native handles of the layers.
        span: the indices of the layers in their stack.
        kv_shapes: the number and the size of the heads of keys and values, for each layer.
    """

    native: native.LayerGroup
    span: slice
    kv_shapes: list[tuple[int, int]]


def make_groups(
    handles: Sequence[LayerHandle | None], first: int, stop: int, phase: Phase
) -> list[LayerGroup]:
    """Cut the layers `first` to `stop` into groups of layers that one primitive computes.

    Args:
        handles: the handles of all layers of a stack. Both halves of each layer of a group must be
            native.
        first: the first layer.
        stop: the layer after the last one.
        phase: the phase of the passes.
    """
    groups, most = [], LAYERS_PER_PRIMITIVE if phase == "decode" else stop - first
    for start in range(first, stop, most):
        span = slice(start, min(start + most, stop))
        own = [handle for handle in handles[span] if handle is not None]
        feed_forward = [each.feed_forward for each in own if each.feed_forward is not None]
        group = native.layer_group([each.attention for each in own], feed_forward)
        groups.append(LayerGroup(group, span, [(each.kv_heads, each.head_dim) for each in own]))
    return groups


def run_dense(
    x: Float[mx.array, "B L E"],
    batch: Batch,
    group: LayerGroup,
    caches: Sequence[LayerCache],
    offset: int,
) -> Float[mx.array, "B L E"]:
    """Compute whole layers, each with a dense cache of `offset` tokens.

    The references to the cache arrays end with this function, so that MLX writes to the arrays in
    place.

    Args:
        x: the input of the first layer.
        batch: the layout of the pass.
        group: the layers.
        caches: the caches of all layers of the stack. Those of the group are `DenseCache`.
        offset: the number of tokens in each cache of the group.
    """
    rows, length, dtype = batch.rows, batch.length, x.dtype
    own = cast("Sequence[DenseCache]", caches[group.span])
    stored: list[mx.array] = []
    for cache, (heads, head_dim) in zip(own, group.kv_shapes, strict=True):
        stored.append(cache.reserve((rows, 2, heads, length, head_dim), dtype))
    y, *written = native.layers(x, group.native, stored, offset, batch.phase)
    for cache, updated in zip(own, written, strict=True):
        cache.commit(updated, length)
    return y


def run_paged(
    x: Float[mx.array, "B L E"],
    batch: Batch,
    group: LayerGroup,
    caches: Sequence[LayerCache],
    window: int | None,
    page_format: tuple[int, int],
) -> Float[mx.array, "B L E"]:
    """Compute whole layers, each with a paged cache. See `run_dense` for the cache arrays.

    Args:
        x: the input of the first layer.
        batch: the layout of the pass, with a page table.
        group: the layers.
        caches: the caches of all layers of the stack. Those of the group are `PagedCache`.
        window: the window of each cache of the group.
        page_format: see `handles.page_format`.

    Raises:
        ValueError: if pages do not fit the page table or the layers.
    """
    table = batch.pages
    assert table is not None  # the path "paged" needs a table
    own = cast("Sequence[PagedCache]", caches[group.span])
    if (own[0].num_pages, own[0].page_size) != (table.num_pages, table.page_size):
        raise ValueError(
            f"caches: expected {table.num_pages} pages of {table.page_size} tokens, as the table "
            f"has, got {own[0].num_pages} of {own[0].page_size}"
        )
    pages: list[Weight] = [stored for cache in own for stored in (cache.keys, cache.values)]
    arrays: list[mx.array] = []
    for stored in pages:
        arrays += (stored,) if isinstance(stored, mx.array) else stored.arrays
    positions = position_rows(batch.positions, batch.rows, batch.length)
    y, *arrays = native.paged_layers(
        x,
        group.native,
        arrays,
        page_format,
        page_table_arrays(table, positions.reshape(-1)),
        window or 0,
        batch.phase,
    )
    if page_format[1]:
        parts = zip(pages, zip(arrays[::3], arrays[1::3], arrays[2::3], strict=True), strict=True)
        written = [with_arrays(stored, updated) for stored, updated in parts]
    else:
        written = list(arrays)
    for cache, keys, values in zip(own, written[::2], written[1::2], strict=True):
        cache.commit(keys, values)
    return y


def run_halves(
    x: Float[mx.array, "B L E"], batch: Batch, handle: LayerHandle, cache: LayerCache
) -> Float[mx.array, "B L E"]:
    """Compute a layer: native projections and MLP or MoE, and the attention of `cache` in between.

    If processes share the layer, rank 0 adds bias and residual, and each half is all-reduced.
    """
    layer, phase = handle.layer, batch.phase
    attention, mlp = handle.heads, layer.mlp
    positions = position_rows(batch.positions, batch.rows, batch.length)
    q, k, v = native.project_qkv(x, handle.attention, positions, phase)
    out = attention_cache(cache).attend(q, k, v, batch, attention.scale, attention.ops)
    joined = out.swapaxes(1, 2).flatten(2)  # B L H*D
    # Rank 0 alone adds bias and residual: the all-reduce would add them once for each rank.
    is_rank_0 = attention.communicator.rank == 0
    bias, residual = (attention.biases.o, x) if is_rank_0 else (None, None)
    y = native.linear(joined, handle.output, bias, residual, phase)
    h = attention.communicator.all_reduce(y)
    if handle.feed_forward is None:
        return mlp(layer.post_attention_norm(h), residual=h, phase=phase)
    return mlp.communicator.all_reduce(native.feed_forward(h, handle.feed_forward, phase))
