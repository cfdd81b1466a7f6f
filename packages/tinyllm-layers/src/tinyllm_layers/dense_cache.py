"""Keys and values as they come."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import AttentionBlock, Block, OpSet

from tinyllm_layers.kv_cache import KVCache
from tinyllm_layers.layer_cache import LayerCache
from tinyllm_layers.token_buffer import TokenBuffer


class DenseCache(KVCache):
    """Every key and value in the dtype of the model, in arrays that grow in steps."""

    def __init__(self) -> None:
        """Start empty."""
        self._keys = TokenBuffer()
        self._values = TokenBuffer()

    @property
    def offset(self) -> int:
        """Tokens seen so far."""
        return self._keys.length

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays of keys and values."""
        return [*self._keys.arrays, *self._values.arrays]

    def attend(
        self,
        q: Float[mx.array, "B H L D"],
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
        scale: float,
        ops: OpSet,
    ) -> Float[mx.array, "B H L D"]:
        """Append k and v, and attend causally to all that is there."""
        self._keys.append(k)
        self._values.append(v)
        # A single query is the last token and sees everything: it needs no mask.
        mask = "causal" if q.shape[2] > 1 else None
        return ops.attention(q, self._keys.filled, self._values.filled, scale, mask)

    def attention_block(
        self, x: Float[mx.array, "B L E"], block: AttentionBlock, ops: OpSet
    ) -> Float[mx.array, "B L E"]:
        """Lend the ops the arrays, to write the new tokens into."""
        y, *store = ops.attention_block(x, block, *self._lend(x, block), self.offset)
        self._keep(store, x.shape[1])
        return y

    def blocks(
        self,
        x: Float[mx.array, "B L E"],
        blocks: Sequence[Block],
        others: Sequence[LayerCache],
        ops: OpSet,
    ) -> Float[mx.array, "B L E"]:
        """Lend the ops the arrays of all blocks, if all have seen as many tokens."""
        caches = [
            cache
            for cache in (self, *others)
            if isinstance(cache, DenseCache) and cache.offset == self.offset
        ]
        if len(caches) < len(blocks):
            return super().blocks(x, blocks, others, ops)
        stores = [
            cache._lend(x, block.attention) for cache, block in zip(caches, blocks, strict=True)
        ]
        y, stores = ops.blocks(x, blocks, stores, self.offset)
        for cache, store in zip(caches, stores, strict=True):
            cache._keep(store, x.shape[1])
        return y

    def can_trim(self, length: int) -> bool:
        """Any prefix can be gone back to."""
        return 0 <= length <= self.offset

    def trim(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self._keys.trim(length)
        self._values.trim(length)

    def _lend(self, x: mx.array, block: AttentionBlock) -> tuple[mx.array, mx.array]:
        """Keys and values, with room for the tokens of x."""
        new = (x.shape[0], block.num_kv_heads, x.shape[1], block.head_dim)
        return self._keys.room_for(new, x.dtype), self._values.room_for(new, x.dtype)

    def _keep(self, store: Sequence[mx.array], count: int) -> None:
        """Take keys and values back, with so many more tokens."""
        keys, values = store
        self._keys.keep(keys, count)
        self._values.keep(values, count)
