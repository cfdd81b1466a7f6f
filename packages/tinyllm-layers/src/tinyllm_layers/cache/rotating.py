"""A rotating cache: keys and values of the first and the most recent tokens."""

from collections.abc import Iterator

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_ops import OpSet
from tinyllm_ops.checks import check_appended, check_new_tokens

from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import KVCache
from tinyllm_layers.cache.dense import CAPACITY_STEP, alias, with_capacity


class RotatingCache(KVCache):
    """A cache of at most `max_size` tokens: the first `keep`, and a ring of the most recent.

    A token attends to the first `keep` tokens and to the last `max_size - keep` tokens, itself
    included. This is a sliding window with attention sinks (Xiao et al. 2023), except that tokens
    keep their positions. The set of visible tokens does not depend on the size of the chunks.

    Attributes:
        max_size: the largest number of stored tokens.
        keep: the number of first tokens that are never overwritten.

    Raises:
        ValueError: if `keep` is negative or not below `max_size`.
    """

    def __init__(self, max_size: int, keep: int = 4) -> None:
        """Make an empty cache."""
        if not 0 <= keep < max_size:
            raise ValueError(f"keep: expected 0 to {max_size - 1}, got {keep}")
        self.max_size = max_size
        self.keep = keep
        self._offset = 0
        self._keys: Float[mx.array, "B Hkv slots D"] | None = None
        self._values: Float[mx.array, "B Hkv slots D"] | None = None

    @property
    def offset(self) -> int:
        """The number of tokens seen so far, overwritten tokens included."""
        return self._offset

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays of keys and values."""
        return [array for array in (self._keys, self._values) if array is not None]

    def update(
        self,
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
    ) -> tuple[Float[mx.array, "B Hkv slots D"], Float[mx.array, "B Hkv slots D"]]:
        """Append keys and values, and return the slots in use.

        `slot_positions` returns the position of the token in each slot. If a chunk is longer than
        the ring, the tokens that the chunk itself would overwrite are not stored.
        """
        check_appended(k, v, self._shape, self._dtype)
        self._commit(*self._extended(k, v), k.shape[2])
        return self._used_slots()

    def attend(
        self,
        q: Float[mx.array, "B H L D"],
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
        batch: Batch,
        scale: float,
        ops: OpSet,
    ) -> Float[mx.array, "B H L D"]:
        """Attend to the stored and the new tokens, and store the new tokens.

        In a decode step the new token is stored before attention, because it overwrites only a
        token that it no longer sees. A prompt chunk is stored after attention, because the first
        tokens of the chunk still see tokens that its last tokens overwrite.
        """
        check_new_tokens(q, k, v, (batch.rows, batch.length), self._shape, self._dtype)
        batch.check_follows(self.offset)
        if batch.phase == "decode" and q.shape[2] == 1:
            updated = self._extended(k, v)
            used = min(self._offset + 1, self.max_size)
            keys, values = (x[..., :used, :] for x in updated)
            out = ops.attention(q, keys, values, scale, None, phase=batch.phase)
            self._commit(*updated, 1)
            return out
        new = mx.arange(self._offset, self._offset + q.shape[2])
        seen = mx.concatenate([self.slot_positions(), new])
        recent = seen > new[:, None] - self._ring
        mask = (seen <= new[:, None]) & (recent | (seen < self.keep))  # L S
        if self._keys is None:
            keys, values = k, v
        else:
            pairs = zip(self._used_slots(), (k, v), strict=True)
            keys, values = (mx.concatenate([stored, fresh], axis=2) for stored, fresh in pairs)
        out = ops.attention(q, keys, values, scale, mask, phase=batch.phase)
        self._commit(*self._extended(k, v), k.shape[2])
        return out

    def fork(self) -> "RotatingCache":
        """Return a second cache with the same tokens."""
        fork = RotatingCache(self.max_size, self.keep)
        fork._offset = self._offset
        fork._keys = None if self._keys is None else alias(self._keys)
        fork._values = None if self._values is None else alias(self._values)
        return fork

    def slot_positions(self) -> Integer[mx.array, "slots"]:
        """Return the position of the token in each slot in use."""
        slot, last = mx.arange(min(self._offset, self.max_size)), self._offset - 1
        return mx.where(slot < self.keep, slot, last - (last - slot) % self._ring)

    def can_trim(self, length: int) -> bool:
        """Return True if `length` is `offset`, or is less and no token has been overwritten."""
        return 0 <= length <= self._offset and self._offset <= max(self.max_size, length)

    def trim(self, length: int) -> None:
        """Remove all but the first `length` tokens."""
        if not self.can_trim(length):
            if self._offset <= self.max_size:
                raise ValueError(f"length: expected 0 to {self._offset}, got {length}")
            raise ValueError(
                f"length: expected {self._offset}, because earlier tokens were overwritten, got "
                f"{length}: make a new cache"
            )
        self._offset = length

    @property
    def _ring(self) -> int:
        """The number of slots of the ring."""
        return self.max_size - self.keep

    def _slot(self, position: int) -> int:
        """Return the slot of the token at a position."""
        if position < self.keep:
            return position
        return self.keep + (position - self.keep) % self._ring

    @property
    def _shape(self) -> tuple[int, ...] | None:
        """The shape of the stored keys; None before the first tokens."""
        return None if self._keys is None else tuple(self._keys.shape)

    @property
    def _dtype(self) -> mx.Dtype | None:
        """The dtype of the stored keys; None before the first tokens."""
        return None if self._keys is None else self._keys.dtype

    def _used_slots(self) -> tuple[mx.array, mx.array]:
        """Return the keys and values of the slots in use."""
        assert self._keys is not None  # callers store tokens first
        assert self._values is not None
        used = min(self._offset, self.max_size)
        return self._keys[..., :used, :], self._values[..., :used, :]

    def _extended(self, k: mx.array, v: mx.array) -> tuple[mx.array, mx.array]:
        """Return updated arrays of keys and values, in which k and v are stored.

        Tokens that later tokens of the same chunk overwrite are left out.
        """
        start, end = self._offset, self._offset + k.shape[2]
        capacity = min(self.max_size, -(-end // CAPACITY_STEP) * CAPACITY_STEP)
        keys = alias(with_capacity(self._keys, k.shape, k.dtype, capacity))
        values = alias(with_capacity(self._values, v.shape, v.dtype, capacity))
        for first, stop in self._runs(start, end):
            slot = self._slot(first)
            slots, chosen = slice(slot, slot + stop - first), slice(first - start, stop - start)
            keys[..., slots, :] = k[..., chosen, :]
            values[..., slots, :] = v[..., chosen, :]
        return keys, values

    def _commit(self, keys: mx.array, values: mx.array, count: int) -> None:
        """Replace the arrays by updated arrays, after a pass over `count` tokens."""
        self._keys, self._values = keys, values
        self._offset += count

    def _runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Cut the positions `start` to `end` into runs with consecutive slots.

        Positions that later positions of the chunk overwrite are left out.

        Yields:
            First position and end of each run.
        """
        while start < end:
            if start < self.keep:
                stop = min(self.keep, end)
            else:
                start = max(start, end - self._ring)
                stop = min(start + self.max_size - self._slot(start), end)
            yield start, stop
            start = stop
