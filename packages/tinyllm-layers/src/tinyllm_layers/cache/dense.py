"""Keys and values as they come."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import OpSet

from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import KVCache, check_appended, check_new_tokens
from tinyllm_layers.cache.token_buffer import TokenBuffer


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

    def update(
        self,
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
    ) -> tuple[Float[mx.array, "B Hkv S D"], Float[mx.array, "B Hkv S D"]]:
        """Append keys and values, and return those of all tokens."""
        check_appended(k, v, self._keys.shape, self._keys.dtype)
        self._keys.append(k)
        self._values.append(v)
        return self._keys.filled, self._values.filled

    def attend(
        self,
        q: Float[mx.array, "B H L D"],
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
        batch: Batch,
        scale: float,
        ops: OpSet,
    ) -> Float[mx.array, "B H L D"]:
        """Append k and v, and attend causally to all tokens."""
        check_new_tokens(q, k, v, batch, self._keys.shape, self._keys.dtype)
        keys, values = self._keys.extended(k), self._values.extended(v)
        seen = slice(self.offset + k.shape[2])
        # A single query is the last token and sees everything: it needs no mask.
        mask = "causal" if q.shape[2] > 1 else None
        out = ops.attention(
            q, keys[..., seen, :], values[..., seen, :], scale, mask, phase=batch.phase
        )
        self.commit(keys, values, k.shape[2])
        return out

    def reserve(
        self, new: Sequence[int], dtype: mx.Dtype
    ) -> tuple[Float[mx.array, "B Hkv capacity D"], Float[mx.array, "B Hkv capacity D"]]:
        """Lend the arrays to a native stack, with room for new tokens at `offset`.

        The borrower must drop them before the graph is computed, or MLX copies them.

        Args:
            new: the shape `B Hkv L D` of the new keys.
            dtype: of the new keys.

        Raises:
            ValueError: if shape or dtype differ from those of earlier tokens.
        """
        return self._keys.reserve(new, dtype), self._values.reserve(new, dtype)

    def commit(
        self,
        keys: Float[mx.array, "B Hkv capacity D"],
        values: Float[mx.array, "B Hkv capacity D"],
        count: int,
    ) -> None:
        """Take the successors of the lent arrays, in which `count` more tokens are written."""
        self._keys.commit(keys, count)
        self._values.commit(values, count)

    def can_trim(self, length: int) -> bool:
        """Return True for any prefix."""
        return 0 <= length <= self.offset

    def trim(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self._keys.trim(length)
        self._values.trim(length)

    def fork(self) -> DenseCache:
        """Return a second cache with the same tokens."""
        twin = DenseCache()
        twin._keys, twin._values = self._keys.fork(), self._values.fork()
        return twin
