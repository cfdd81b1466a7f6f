"""Groups of consecutive layers, and the passes that compute them: whole layers, or halves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx
from jaxtyping import Float
from tinyllm_layers import Batch, GroupedQueryAttention, LayerCache, PagedCache
from tinyllm_layers.attention import attention_cache
from tinyllm_layers.cache.base import StateCache
from tinyllm_layers.cache.dense import GrowingCache
from tinyllm_layers.gated_delta_net import state_cache
from tinyllm_ops import PageTable, Phase, QuantizedTensor, StateTable, Weight

from tinyllm_kernels import _cpu as native
from tinyllm_kernels.cpu.arguments import page_table_arrays
from tinyllm_kernels.cpu.layers.cache_formats import DENSE
from tinyllm_kernels.cpu.layers.handles import LayerHandle
from tinyllm_kernels.cpu.recurrent import state_table_arrays
from tinyllm_kernels.rope_arguments import position_rows

LAYERS_PER_PRIMITIVE = 14
"""The largest number of layers in one primitive of MLX, for decode steps whose caches are not lent
(see `loans`). MLX prepares all inputs of a primitive before its first layer starts, while the
threads wait. On 28 layers, two primitives were measured to be faster than one and than four. All
layers of a prompt are one primitive, because a prompt takes much longer than that preparation."""


@dataclass(frozen=True, eq=False)
class LayerGroup:
    """Consecutive layers that one primitive computes.

    Attributes:
        handle: the native handle of the layers.
        span: the indices of the layers in their stack.
        handles: the handles of the layers.
    """

    handle: native.LayerGroup
    span: slice
    handles: list[LayerHandle]


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
    groups = []
    size = LAYERS_PER_PRIMITIVE if phase == "decode" else stop - first
    for start in range(first, stop, size):
        span = slice(start, min(start + size, stop))
        members = [handle for handle in handles[span] if handle is not None]
        halves = [
            (each.mixer, each.feed_forward) for each in members if each.feed_forward is not None
        ]
        groups.append(LayerGroup(native.layer_group(halves), span, members))
    return groups


def attention_layers(group: LayerGroup) -> list[GroupedQueryAttention]:
    """Return the attention of each layer of a group that has attention."""
    return [handle.attention for handle in group.handles if handle.attention is not None]


def attention_caches(group: LayerGroup, caches: Sequence[LayerCache]) -> list[LayerCache]:
    """Return the caches of the layers of a group that have attention."""
    pairs = zip(group.handles, caches[group.span], strict=True)
    return [cache for handle, cache in pairs if handle.attention is not None]


def first_position(batch: Batch) -> int | None:
    """Return the first position if all rows have the same positions, as one slice; else None."""
    positions = batch.positions
    if batch.page_table is not None or not isinstance(positions, slice):
        return None
    first = positions.start or 0
    return first if positions == slice(first, first + batch.length) else None


def has_page_table(batch: Batch) -> bool:
    """Return True if the batch has a page table and one position for each of its tokens."""
    table, positions = batch.page_table, batch.positions
    return (
        table is not None
        and isinstance(positions, mx.array)
        and positions.size == table.count == batch.rows * batch.length
        and len(table.seq_lens) > 0
    )


def check_page_table(batch: Batch, caches: Sequence[PagedCache]) -> None:
    """Raise ValueError unless the pages of the first cache fit the page table."""
    table, pages = batch.page_table, caches[0]
    assert table is not None  # the path "paged" needs a table
    if (pages.num_pages, pages.page_size) != (table.num_pages, table.page_size):
        raise ValueError(
            f"caches: expected {table.num_pages} pages of {table.page_size} tokens, as the table "
            f"has, got {pages.num_pages} of {pages.page_size}"
        )


def native_page_table(batch: Batch) -> "native.PageTableArrays":
    """Convert the page table and the positions of a batch to the tuple of the extension."""
    assert batch.page_table is not None  # the path "paged" needs a table
    positions = position_rows(batch.positions, batch.rows, batch.length)
    return page_table_arrays(batch.page_table, positions.reshape(-1))


def sequence_table(batch: Batch, offset: int, capacity: int) -> "native.PageTableArrays":
    """Return the page table of a pass over quantized caches, in which each row is one page.

    Args:
        batch: the layout of the pass.
        offset: the number of earlier tokens of each row.
        capacity: the number of tokens of a page.
    """
    chunks = [([row], offset, offset + batch.length) for row in range(batch.rows)]
    table = PageTable.of(chunks, num_pages=batch.rows, page_size=capacity)
    return page_table_arrays(table, table.arrays.positions)


def reserve_arrays(
    x: Float[mx.array, "B L E"],
    batch: Batch,
    group: LayerGroup,
    caches: Sequence[GrowingCache],
    cache_format: tuple[int, int],
) -> list[mx.array]:
    """Return the arrays of all caches of a group, with capacity for the tokens of x.

    The arrays of quantized caches get equal capacities, because a page table has one page size.
    """

    def reserved(least: int) -> list[mx.array]:
        arrays = []
        for cache, attention in zip(caches, attention_layers(group), strict=True):
            shape = batch.rows, attention.num_kv_heads, batch.length, attention.head_dim
            arrays += cache.reserve(shape, x.dtype, least)
        return arrays

    arrays = reserved(0)
    if cache_format != DENSE:
        capacities = {array.shape[-2] for array in arrays}
        if len(capacities) > 1:
            del arrays  # a second reference would make the extension copy them
            arrays = reserved(max(capacities))
    return arrays


def page_arrays(caches: Sequence[PagedCache]) -> list[mx.array]:
    """Return the arrays of all caches: of keys and of values one, or codes, scales and biases."""
    return [array for cache in caches for array in cache.arrays]


def pages_of_arrays(arrays: Sequence[mx.array], cache_format: tuple[int, int]) -> list[Weight]:
    """Return keys and values of all caches, from the arrays that `page_arrays` returns.

    Args:
        arrays: the arrays.
        cache_format: see `cache_formats.page_format`.
    """
    if cache_format == DENSE:
        return list(arrays)
    group_size, bits = cache_format
    parts = zip(arrays[::3], arrays[1::3], arrays[2::3], strict=True)
    return [QuantizedTensor(*part, group_size, bits) for part in parts]


class GroupStates:
    """The states of the recurrent layers of a group, borrowed from their caches for one pass."""

    def __init__(self, batch: Batch, group: LayerGroup, caches: Sequence[LayerCache]) -> None:
        """Take the slots and the tables of all recurrent layers of a group."""
        self._phase = batch.phase
        self._caches: list[StateCache] = []
        self._arrays: list[mx.array] = []
        self._tables: list[StateTable] = []
        self._table_of_layer: list[int] = []
        for handle, cache in zip(group.handles, caches[group.span], strict=True):
            if handle.state is None:
                continue
            held = state_cache(cache)
            conv, state, table = held.slots_and_table(batch, handle.state)
            self._caches.append(held)
            self._arrays += conv, state
            # The caches of a model have seen the same tokens, so that their tables are one object.
            known = [i for i, other in enumerate(self._tables) if other is table]
            if not known:
                self._tables.append(table)
            self._table_of_layer.append(known[0] if known else len(self._tables) - 1)

    def native(self) -> "native.GroupStateArrays":
        """Return the arguments of the extension, and drop the references to the slots."""
        arrays, self._arrays = self._arrays, []
        return arrays, [state_table_arrays(table) for table in self._tables], self._table_of_layer

    def commit(self, arrays: Sequence[mx.array]) -> None:
        """Replace the slots of all layers: arrays of the first, then of the second layer, ..."""
        for i, cache in enumerate(self._caches):
            table = self._tables[self._table_of_layer[i]]
            cache.commit(arrays[2 * i], arrays[2 * i + 1], table, self._phase)


def run_sequences(
    x: Float[mx.array, "B L E"],
    batch: Batch,
    group: LayerGroup,
    caches: Sequence[LayerCache],
    offset: int,
    cache_format: tuple[int, int],
) -> Float[mx.array, "B L E"]:
    """Compute whole layers, each with a cache of `offset` tokens in each row or with states.

    The references to the cache arrays end with this function, so that MLX writes to the arrays in
    place.

    Args:
        x: the input of the first layer.
        batch: the layout of the pass.
        group: the layers.
        caches: the caches of all layers of the stack. Those of the group are `GrowingCache`, and
            of recurrent layers `StateCache`.
        offset: the number of tokens in each growing cache of the group.
        cache_format: see `cache_formats.sequence_format`.

    Raises:
        ValueError: if the tokens do not fit the stored ones.
    """
    states = GroupStates(batch, group, caches)
    growing = cast("Sequence[GrowingCache]", attention_caches(group, caches))
    stored = reserve_arrays(x, batch, group, growing, cache_format)
    count, phase = len(stored), batch.phase
    if growing and cache_format != DENSE:
        table = sequence_table(batch, offset, stored[0].shape[2])
        y, *written = native.paged_layers(
            x,
            group.handle,
            stored,
            cache_format,
            table,
            0,
            phase,
            states.native(),
            without_tokens=offset == 0,
        )
    else:
        y, *written = native.layers(x, group.handle, stored, offset, phase, states.native())
    states.commit(written[count:])
    for index, cache in enumerate(growing):
        parts = count // len(growing)
        cache.commit(written[index * parts : (index + 1) * parts], batch.length)
    return y


def run_paged(
    x: Float[mx.array, "B L E"],
    batch: Batch,
    group: LayerGroup,
    caches: Sequence[LayerCache],
    window: int | None,
    cache_format: tuple[int, int],
) -> Float[mx.array, "B L E"]:
    """Compute whole layers, each with a paged cache or with states. See `run_sequences`.

    A group of recurrent layers alone needs no pages.

    Args:
        x: the input of the first layer.
        batch: the layout of the pass, with a page table.
        group: the layers.
        caches: the caches of all layers of the stack. Those of the group are `PagedCache`, and of
            recurrent layers `StateCache`.
        window: the window of each cache of the group.
        cache_format: see `cache_formats.page_format`.

    Raises:
        ValueError: if pages do not fit the page table or the layers.
    """
    paged = cast("Sequence[PagedCache]", attention_caches(group, caches))
    if not paged:
        return run_sequences(x, batch, group, caches, 0, DENSE)
    check_page_table(batch, paged)
    arrays = page_arrays(paged)
    states = GroupStates(batch, group, caches)
    count = len(arrays)
    y, *written = native.paged_layers(
        x,
        group.handle,
        arrays,
        cache_format,
        native_page_table(batch),
        window or 0,
        batch.phase,
        states.native(),
    )
    states.commit(written[count:])
    pages = pages_of_arrays(written[:count], cache_format)
    for cache, keys, values in zip(paged, pages[::2], pages[1::2], strict=True):
        cache.commit(keys, values)
    return y


def run_halves(
    x: Float[mx.array, "B L E"], batch: Batch, handle: LayerHandle, cache: LayerCache
) -> Float[mx.array, "B L E"]:
    """Compute a layer: native projections and MLP or MoE, and the attention of `cache` in between.

    If processes share the layer, each half is all-reduced.
    """
    layer, phase, attention = handle.layer, batch.phase, handle.attention
    mlp = layer.mlp
    assert attention is not None  # recurrent layers have no path "halves"
    assert isinstance(handle.mixer, native.AttentionHandle)
    positions = position_rows(batch.positions, batch.rows, batch.length)
    q, k, v, *gates = native.project_qkv(x, handle.mixer, positions, phase)
    out = attention_cache(cache).attend(q, k, v, batch, attention.scale, attention.ops)
    joined = out.swapaxes(1, 2).flatten(2)  # B L H*D
    for gate in gates:
        joined = native.output_gate(joined, gate)
    h = attention.output(joined, batch, x)
    if handle.feed_forward is None:
        return mlp(layer.post_attention_norm(h), residual=h, phase=phase)
    return mlp.communicator.all_reduce(native.feed_forward(h, handle.feed_forward, phase))
