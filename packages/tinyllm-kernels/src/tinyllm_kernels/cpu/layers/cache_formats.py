"""The formats of keys and values that the extension writes: dense, or codes in groups."""

import mlx.core as mx
from tinyllm_layers import DenseCache, LayerCache, PagedCache, QuantizedCache

_BITS = (4, 8)
"""The widths of codes that the extension writes to caches."""

DENSE = (0, 0)
"""The format of keys and values in the dtype of the model: see `sequence_format`, `page_format`."""


def sequence_format(cache: LayerCache) -> tuple[int, int] | None:
    """Return the group size and the bits of a cache of whole sequences, or `DENSE`.

    Returns:
        The format, or None if the extension cannot write keys and values to the cache. A subclass
        may override `attend`, so that it has no format.
    """
    if type(cache) is DenseCache:
        return DENSE
    if type(cache) is QuantizedCache and cache.bits in _BITS:
        return cache.group_size, cache.bits
    return None


def page_format(cache: PagedCache, dtype: mx.Dtype) -> tuple[int, int] | None:
    """Return the group size and the bits of a cache's pages, or `DENSE`.

    Returns:
        The format, or None if the extension cannot write keys and values of `dtype` to the pages.
        The shapes of the pages are checked by the extension.
    """
    keys, values = cache.keys, cache.values
    if isinstance(keys, mx.array):
        is_dense = keys.dtype == dtype and isinstance(values, mx.array) and values.dtype == dtype
        return DENSE if is_dense else None
    if not isinstance(values, mx.array) and (
        keys.mode == values.mode == "affine"
        and keys.bits in _BITS
        and (keys.group_size, keys.bits) == (values.group_size, values.bits)
        and keys.scales.dtype == values.scales.dtype == dtype
    ):
        return keys.group_size, keys.bits
    return None
