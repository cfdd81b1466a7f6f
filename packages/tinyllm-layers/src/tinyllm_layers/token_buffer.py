"""An array that grows along its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Shaped

STEP = 256


class TokenBuffer:
    """Numbers of shape `*lead tokens width` in an array that has room to spare.

    Room is added in steps of `STEP` tokens, so that appending a token writes one token: MLX updates
    the array in place when nothing else refers to it at the time the update is scheduled. Work
    under way does refer to what it reads: whoever schedules a token before the one before it is
    computed pays a copy of all of them. Build the graph early, schedule it late.
    """

    def __init__(self) -> None:
        """Start empty; the first append decides shape and dtype."""
        self.length = 0
        self._room: Shaped[mx.array, "*lead capacity width"] | None = None

    def append(self, x: Shaped[mx.array, "*lead new width"]) -> None:
        """Add tokens at the end.

        Raises:
            ValueError: if they differ in shape or dtype from those that are there.
        """
        end = self.length + x.shape[-2]
        room = self.room_for(x.shape, x.dtype)
        room[..., self.length : end, :] = x
        self.keep(room, x.shape[-2])

    def room_for(
        self, new: Sequence[int], dtype: mx.Dtype
    ) -> Shaped[mx.array, "*lead capacity width"]:
        """Give the array, with room for tokens of the shape `new` after those that it holds.

        Raises:
            ValueError: if shape or dtype differ from those of the tokens that are there.
        """
        end = self.length + new[-2]
        self._room = with_room(self._room, new, dtype, -(-end // STEP) * STEP)
        return self._room

    def keep(self, room: Shaped[mx.array, "*lead capacity width"], count: int) -> None:
        """Hold, instead of the array that was given, one with `count` more tokens."""
        self._room = room
        self.length += count

    @property
    def filled(self) -> Shaped[mx.array, "*lead tokens width"]:
        """The tokens appended and not trimmed."""
        if self._room is None:
            raise ValueError("the buffer is empty: append to it before reading it")
        return self._room[..., : self.length, :]

    @property
    def arrays(self) -> list[mx.array]:
        """The array behind the buffer, if there is one yet."""
        return [] if self._room is None else [self._room]

    def trim(self, length: int) -> None:
        """Forget all but the first `length` tokens; their room stays.

        Raises:
            ValueError: if there are fewer.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"length: expected 0 to {self.length}, got {length}")
        self.length = length


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
