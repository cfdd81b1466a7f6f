"""An array that grows along its tokens."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Shaped

STEP = 256


class TokenBuffer:
    """Numbers of shape `*lead tokens width` in an array that has room to spare.

    Room is added in steps of `STEP` tokens, so that appending a token writes one token: MLX updates
    the array in place, as nothing else refers to it by the time the update runs.
    """

    def __init__(self) -> None:
        """Start empty; the first append decides shape and dtype."""
        self.length = 0
        self._room: Shaped[mx.array, "*lead capacity width"] | None = None

    def append(self, x: Shaped[mx.array, "*lead new width"]) -> None:
        """Add tokens at the end."""
        end = self.length + x.shape[-2]
        capacity = 0 if self._room is None else self._room.shape[-2]
        if end > capacity:
            grown = -(-end // STEP) * STEP
            more = mx.zeros((*x.shape[:-2], grown - capacity, x.shape[-1]), x.dtype)
            self._room = more if self._room is None else mx.concatenate([self._room, more], axis=-2)
        assert self._room is not None  # it was made above if there was none
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
