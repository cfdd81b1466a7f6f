"""Keys and values as they come."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import AttentionBlock, OpSet

from tinyllm_layers.kv_cache import KVCache
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
        batch, length, _ = x.shape
        new = (batch, block.num_kv_heads, length, block.head_dim)
        keys, values = (buffer.room_for(new, x.dtype) for buffer in (self._keys, self._values))
        y, keys, values = ops.attention_block(x, block, keys, values, self.offset)
        self._keys.keep(keys, length)
        self._values.keep(values, length)
        return y

    def can_trim(self, length: int) -> bool:
        """Any prefix can be gone back to."""
        return 0 <= length <= self.offset

    def trim(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self._keys.trim(length)
        self._values.trim(length)
