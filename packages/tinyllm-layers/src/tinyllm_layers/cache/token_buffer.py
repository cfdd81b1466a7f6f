"""An array that grows along its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Shaped

STEP = 256


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
            ValueError: if they differ in shape or dtype from earlier ones.
        """
        self.commit(self.extended(x), x.shape[-2])

    def extended(
        self, x: Shaped[mx.array, "*lead new width"]
    ) -> Shaped[mx.array, "*lead capacity width"]:
        """Return the successor of the array, in which tokens are added, for `commit`.

        Raises:
            ValueError: if they differ in shape or dtype from earlier ones.
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
            ValueError: if shape or dtype differ from those of the present tokens.
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
            ValueError: if there are fewer.
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
    """Return an array object of its own for the same numbers: a slice update leaves x alone."""
    return x[...]


def with_room(
    room: Shaped[mx.array, "*lead held width"] | None,
    new: Sequence[int],
    dtype: mx.Dtype,
    capacity: int,
) -> Shaped[mx.array, "*lead capacity width"]:
    """Grow `room` so that it holds `capacity` tokens like `new` ones, unless it does already.

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
