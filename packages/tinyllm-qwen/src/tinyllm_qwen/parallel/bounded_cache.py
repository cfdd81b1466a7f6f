"""A cache of rank 0 that refuses to be trimmed further than the caches of the other ranks."""

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Float
from tinyllm_layers import Batch, KVCache, RotatingCache, SequenceCache
from tinyllm_ops import OpSet, Weight

from tinyllm_qwen.caches import make_caches
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.partition.partition import Partition


class BoundedCache(KVCache):
    """A cache that can be trimmed only if a `RotatingCache` of `size` tokens can be trimmed too.

    Attributes:
        cache: the cache that stores the keys and values.
        size: the number of tokens in the smallest `RotatingCache` of the other ranks.
    """

    def __init__(self, cache: KVCache, size: int) -> None:
        """Wrap a cache."""
        self.cache = cache
        self.size = size

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays of keys and values."""
        return self.cache.arrays

    @property
    def offset(self) -> int:
        """The number of tokens seen so far."""
        return self.cache.offset

    def update(
        self, k: Float[mx.array, "B Hkv L D"], v: Float[mx.array, "B Hkv L D"]
    ) -> tuple[Weight, Weight]:
        """Append keys and values of L tokens, and return all stored keys and values."""
        return self.cache.update(k, v)

    def attend(
        self,
        q: Float[mx.array, "B H L D"],
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
        batch: Batch,
        scale: float,
        ops: OpSet,
    ) -> Float[mx.array, "B H L D"]:
        """Append k and v, and attend to all tokens that a query may see."""
        return self.cache.attend(q, k, v, batch, scale, ops)

    def set_expected_length(self, length: int) -> None:
        """Prepare for a text of `length` tokens: see `SequenceCache.set_expected_length`."""
        self.cache.set_expected_length(length)

    def can_trim(self, length: int) -> bool:
        """Return True if every rank can trim its caches to the first `length` tokens."""
        return self.cache.can_trim(length) and self.offset <= max(self.size, length)

    def trim(self, length: int) -> None:
        """Remove all but the first `length` tokens."""
        if not self.can_trim(length):
            raise ValueError(
                f"length: expected a prefix that all ranks still hold, got {length} of "
                f"{self.offset} tokens: a sliding window keeps the last {self.size}"
            )
        self.cache.trim(length)

    def fork(self) -> "BoundedCache":
        """Return a second cache with the same tokens."""
        return BoundedCache(self.cache.fork(), self.size)


def bounded(
    caches: Sequence[SequenceCache],
    config: QwenConfig,
    *,
    kv_bits: int | None = None,
    max_size: int | None = None,
) -> list[SequenceCache]:
    """Return the caches, the first as a `BoundedCache` if the caches of other ranks are smaller.

    Args:
        caches: the caches of this rank's layers.
        config: the architecture of the whole model.
        kv_bits: the bits of quantized caches, as in `make_caches`.
        max_size: the number of tokens that the caches keep, as in `make_caches`.

    Raises:
        ValueError: if other ranks have rotating caches, and this one has recurrent layers alone.
    """
    whole = Partition.whole(config)
    on_all_ranks = _smallest(make_caches(config, whole, kv_bits=kv_bits, max_size=max_size))
    on_this_rank = _smallest(caches)
    if on_all_ranks is None or (on_this_rank is not None and on_this_rank <= on_all_ranks):
        return list(caches)
    first, *others = caches
    if not isinstance(first, KVCache):
        raise ValueError(
            "max_size: expected an attention layer on rank 0, got recurrent layers alone: give "
            "rank 0 more layers, or leave max_size out"
        )
    return [BoundedCache(first, on_all_ranks), *others]


def _smallest(caches: Sequence[SequenceCache]) -> int | None:
    """Return the size of the smallest rotating cache; None if there is no rotating cache."""
    sizes = (cache.max_size for cache in caches if isinstance(cache, RotatingCache))
    return min(sizes, default=None)
