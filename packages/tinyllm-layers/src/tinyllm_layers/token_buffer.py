"""An array that grows along its tokens."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Shaped
from tinyllm_ops.contract import require_dtype, require_shape

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
        self._room = with_room(self._room, x, -(-end // STEP) * STEP)
        self._room[..., self.length : end, :] = x
        self.length = end

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
    x: Shaped[mx.array, "*lead new width"],
    capacity: int,
) -> Shaped[mx.array, "*lead capacity width"]:
    """Grow `room` so that it holds `capacity` tokens like those in x, unless it does already.

    Raises:
        ValueError: if x has tokens of another shape or dtype: a slice update would broadcast and
            cast them in silence.
    """
    if room is None:
        return mx.zeros((*x.shape[:-2], capacity, x.shape[-1]), x.dtype)
    require_shape("x", x, (*room.shape[:-2], x.shape[-2], room.shape[-1]))
    require_dtype("x", x, room.dtype)
    missing = capacity - room.shape[-2]
    if missing <= 0:
        return room
    more = mx.zeros((*room.shape[:-2], missing, room.shape[-1]), room.dtype)
    return mx.concatenate([room, more], axis=-2)
