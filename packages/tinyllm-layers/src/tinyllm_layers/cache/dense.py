"""A dense cache: keys and values in the model's dtype, in arrays that grow by tokens."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Float, Shaped
from tinyllm_ops import OpSet
from tinyllm_ops.checks import check_appended, check_new_tokens

from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import KVCache

STEP = 256


class DenseCache(KVCache):
    """Every key and value in the dtype of the model, in arrays that grow in steps."""

    def __init__(self) -> None:
        """Start empty."""
        self._keys = TokenBuffer()
        self._values = TokenBuffer()

    @property
    def offset(self) -> int:
        """The number of tokens seen so far."""
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
        """Append keys and values, and return the keys and values of all tokens."""
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
        check_new_tokens(q, k, v, (batch.rows, batch.length), self._keys.shape, self._keys.dtype)
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
            dtype: the dtype of the new keys.

        Raises:
            ValueError: if shape or dtype differ from earlier tokens.
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


class TokenBuffer:
    """Numbers of shape `*lead tokens width` in an array that has room to spare.

    Room is added in steps of `STEP` tokens, so that appending a token writes one token: MLX updates
    the array in place if nothing else refers to it when the update is scheduled. Work that has not
    ended refers to its inputs, so a step that is scheduled before the step before it has ended
    copies the whole array. Build the graph early, schedule it late.
    """

    def __init__(self) -> None:
        """Start empty; the first tokens decide shape and dtype."""
        self.length = 0
        self._room: Shaped[mx.array, "*lead capacity width"] | None = None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the array, room included; None before the first tokens."""
        return None if self._room is None else tuple(self._room.shape)

    @property
    def dtype(self) -> mx.Dtype | None:
        """The dtype of the array; None before the first tokens."""
        return None if self._room is None else self._room.dtype

    @property
    def arrays(self) -> list[mx.array]:
        """The array behind the buffer, if there is one yet."""
        return [] if self._room is None else [self._room]

    @property
    def filled(self) -> Shaped[mx.array, "*lead tokens width"]:
        """The tokens that were appended and not trimmed.

        Raises:
            ValueError: if nothing was appended yet.
        """
        if self._room is None:
            raise ValueError("the buffer is empty: append to it before reading it")
        return self._room[..., : self.length, :]

    def append(self, x: Shaped[mx.array, "*lead new width"]) -> None:
        """Add tokens at the end.

        Raises:
            ValueError: if they differ in shape or dtype from earlier tokens.
        """
        self.commit(self.extended(x), x.shape[-2])

    def extended(
        self, x: Shaped[mx.array, "*lead new width"]
    ) -> Shaped[mx.array, "*lead capacity width"]:
        """Return the successor of the array, in which tokens are added, for `commit`.

        Raises:
            ValueError: if they differ in shape or dtype from earlier tokens.
        """
        room = another_name(self.reserve(x.shape, x.dtype))
        room[..., self.length : self.length + x.shape[-2], :] = x
        return room

    def reserve(
        self, new: Sequence[int], dtype: mx.Dtype
    ) -> Shaped[mx.array, "*lead capacity width"]:
        """Return the array, with room for tokens of the shape `new` after the present ones.

        Nothing changes until `commit`.

        Raises:
            ValueError: if shape or dtype differ from the present tokens.
        """
        end = self.length + new[-2]
        return with_room(self._room, new, dtype, -(-end // STEP) * STEP)

    def commit(self, room: Shaped[mx.array, "*lead capacity width"], count: int) -> None:
        """Replace the array by its successor, in which `count` more tokens are written."""
        self._room = room
        self.length += count

    def trim(self, length: int) -> None:
        """Forget all but the first `length` tokens; their room stays.

        Raises:
            ValueError: if there are fewer than `length` tokens.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"length: expected 0 to {self.length}, got {length}")
        self.length = length

    def fork(self) -> TokenBuffer:
        """Return a second buffer with the same tokens; the next write to either copies them."""
        twin = TokenBuffer()
        twin.length = self.length
        twin._room = None if self._room is None else another_name(self._room)
        return twin


def another_name(x: Shaped[mx.array, "..."]) -> Shaped[mx.array, "..."]:
    """Return a second array object for the same data, so that a slice update leaves x alone."""
    return x[...]


def with_room(
    room: Shaped[mx.array, "*lead held width"] | None,
    new: Sequence[int],
    dtype: mx.Dtype,
    capacity: int,
) -> Shaped[mx.array, "*lead capacity width"]:
    """Return `room`, grown if it does not hold `capacity` tokens of the shape `new`.

    Raises:
        ValueError: if new tokens have another shape or dtype: a slice update would broadcast and
            cast them in silence.
    """
    *lead, _, width = new
    if room is None:
        return mx.zeros((*lead, capacity, width), dtype)
    if (*lead, width) != (*room.shape[:-2], room.shape[-1]):
        expected = (*room.shape[:-2], new[-2], room.shape[-1])
        raise ValueError(f"x: expected shape {expected}, got {tuple(new)}")
    if dtype != room.dtype:
        raise ValueError(f"x: expected dtype {room.dtype}, got {dtype}")
    missing = capacity - room.shape[-2]
    if missing <= 0:
        return room
    more = mx.zeros((*room.shape[:-2], missing, room.shape[-1]), room.dtype)
    return mx.concatenate([room, more], axis=-2)
