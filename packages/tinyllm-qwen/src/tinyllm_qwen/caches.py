"""Functions that make the caches and pages of a model."""

from collections.abc import Iterable, Sequence

import mlx.core as mx
from tinyllm_layers import (
    Batch,
    DenseCache,
    LayerCache,
    PagedCache,
    QuantizedCache,
    RecurrentCache,
    RecurrentPool,
    RotatingCache,
    SequenceCache,
    StateShape,
    Zeros,
)

from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.config.recurrent import Recurrent
from tinyllm_qwen.partition.partition import Partition


def make_caches(
    config: QwenConfig,
    part: Partition,
    *,
    kv_bits: int | None = None,
    max_size: int | None = None,
    draft_layers: int = 0,
) -> list[SequenceCache]:
    """Make empty caches for one sequence, or for sequences that always have equal lengths.

    A layer with a sliding window keeps the tokens in the window, or the last `max_size` tokens if
    `max_size` is smaller. It stores keys and values in the dtype of the model, whatever `kv_bits`
    is. A recurrent layer keeps a state of constant size, whatever `kv_bits` and `max_size` are.

    Args:
        config: the architecture of the whole model.
        part: the layers of a process.
        kv_bits: the bits of quantized keys and values, usually 8 or 4; None for no quantization.
        max_size: the number of tokens to keep, a few first and the most recent; None for all.
        draft_layers: the number of layers of the draft head, whose caches come last.

    Raises:
        ValueError: if both `kv_bits` and `max_size` are given, `max_size` is below 5, or the head
            dim is no multiple of a group size.
    """
    if max_size is not None and max_size < 5:
        raise ValueError(
            f"max_size: expected at least 5, four first tokens and one, got {max_size}"
        )
    if kv_bits is not None and max_size is not None:
        raise ValueError("kv_bits, max_size: expected at most one, got both")
    group_size = 0 if kv_bits is None else kv_group_size(config.head_dim)
    window, recurrent = config.sliding_window, config.recurrent

    def cache_of(layer: int) -> SequenceCache:
        if recurrent is not None and layer in recurrent.layers:
            return RecurrentCache()
        if window is not None and layer in window.layers:
            size = window.size if max_size is None else min(window.size, max_size)
            return RotatingCache(size, keep=0)
        if kv_bits is not None:
            return QuantizedCache(kv_bits, group_size)
        return DenseCache() if max_size is None else RotatingCache(max_size)

    return [cache_of(layer) for layer in _cached_layers(config, part, draft_layers)]


def make_pages(
    config: QwenConfig,
    part: Partition,
    dtype: mx.Dtype,
    count: int,
    page_size: int,
    *,
    kv_bits: int | None = None,
    state_slots: int = 0,
    draft_layers: int = 0,
    zeros: Zeros = mx.zeros,
) -> list[PagedCache | RecurrentPool]:
    """Make empty caches for many sequences, one for each layer of a partition.

    An attention layer has a `PagedCache`, a recurrent layer a `RecurrentPool`.

    Args:
        config: the architecture of the whole model.
        part: the layers and the key/value heads of a process.
        dtype: the dtype of keys and values, or of the scales of quantized keys and values.
        count: the number of pages.
        page_size: the number of tokens in a page.
        kv_bits: the bits of quantized keys and values, usually 8 or 4; None for no quantization.
            States are not quantized, and layers with a sliding window are, unlike in `make_caches`.
        state_slots: the number of states that each recurrent layer keeps.
        draft_layers: the number of layers of the draft head, whose caches come last.
        zeros: makes the arrays.

    Raises:
        ValueError: if the head dim is no multiple of a group size.
    """
    window, recurrent = config.sliding_window, config.recurrent

    def cache_of(layer: int) -> PagedCache | RecurrentPool:
        if recurrent is not None and layer in recurrent.layers:
            return RecurrentPool.empty(state_slots, _state_shape(recurrent, part, dtype), zeros)
        return PagedCache.empty(
            (count, len(part.kv_heads), page_size, config.head_dim),
            dtype,
            bits=kv_bits,
            group_size=0 if kv_bits is None else kv_group_size(config.head_dim),
            window=window.size if window is not None and layer in window.layers else None,
            zeros=zeros,
        )

    return [cache_of(layer) for layer in _cached_layers(config, part, draft_layers)]


def common_prefix(caches: Sequence[SequenceCache], length: int) -> int:
    """Return the longest prefix of at most `length` tokens to which all caches can be trimmed.

    The result is 0 if there is no such prefix. A cache may refuse even that: see `can_trim`.
    """
    longest = min([length, *(cache.offset for cache in caches)])
    while longest and not all(cache.can_trim(longest) for cache in caches):
        longest = min(cache.trimmable(longest) for cache in caches)
    return longest


def trim_to_common_prefix(caches: Sequence[SequenceCache], length: int) -> None:
    """Trim all caches to their longest common prefix of at most `length` tokens.

    If some cache cannot be trimmed to that prefix, no cache is changed. `common_offset` then raises
    if the caches hold different numbers of tokens.
    """
    # After an interrupt during a forward pass, the caches hold different numbers of tokens.
    length = common_prefix(caches, length)
    if all(layer_cache.can_trim(length) for layer_cache in caches):
        for layer_cache in caches:
            layer_cache.trim(length)


def common_offset(caches: Sequence[SequenceCache]) -> int:
    """Return the number of tokens that each of the caches holds.

    Raises:
        ValueError: if two caches hold different numbers of tokens, as after an interrupted pass, or
            if the draft head lacks some of them.
    """
    offsets = {cache.offset for cache in caches}
    if len(offsets) != 1:
        raise ValueError(
            f"caches: expected equally many tokens in every layer, got {sorted(offsets)}: a call "
            "was interrupted, or had no `num_speculative_tokens`: make new caches"
        )
    return offsets.pop()


def cache_arrays(caches: Iterable[LayerCache]) -> list[mx.array]:
    """List the arrays of all caches, to be evaluated; see `LayerCache.arrays`."""
    return [array for cache in caches for array in cache.arrays]


def batch_after(caches: Sequence[LayerCache], rows: int, length: int) -> Batch:
    """Return the batch of new tokens that follow the tokens in the caches of one sequence.

    Raises:
        ValueError: if the caches hold different numbers of tokens, or are paged. The batch of paged
            caches needs a `PageTable`.
    """
    sequence_caches = [cache for cache in caches if isinstance(cache, SequenceCache)]
    if len(sequence_caches) < len(caches):
        raise ValueError("batch: expected one for pages, `Batch.paged(table, phase)`, got None")
    return Batch.at(common_offset(sequence_caches) if sequence_caches else 0, rows, length)


def _cached_layers(config: QwenConfig, part: Partition, draft_layers: int) -> list[int]:
    """Return the numbers of the layers with caches. The draft head follows the last layer."""
    count = config.num_hidden_layers
    return [*part.layers, *range(count, count + draft_layers)]


def _state_shape(recurrent: Recurrent, part: Partition, dtype: mx.Dtype) -> StateShape:
    """Return the shape of the state of one sequence in one layer of a partition."""
    local = part.local_recurrent(recurrent)
    return StateShape(
        kernel=local.kernel,
        channels=local.channels,
        num_heads=local.num_value_heads,
        value_dim=local.value_dim,
        key_dim=local.key_dim,
        dtype=dtype,
    )


def kv_group_size(head_dim: int) -> int:
    """Return the largest group size of quantized keys that divides the head dim.

    Raises:
        ValueError: if there is none.
    """
    for group_size in (64, 32):
        if head_dim % group_size == 0:
            return group_size
    raise ValueError(f"kv_bits: expected a head dim in groups of 32, the model has {head_dim}")
