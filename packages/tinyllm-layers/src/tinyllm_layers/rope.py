"""Rotary positions with their settings."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import REFERENCE, OpSet, Positions, Rotary, Yarn
from tinyllm_ops.positions import slice_start


class RoPE:
    """Rotary position embedding for heads of `dims` features and texts of up to `seq_len` tokens.

    Raises:
        ValueError: if `dims` is odd.
    """

    def __init__(
        self,
        dims: int,
        seq_len: int,
        base: float = 10000.0,
        traditional: bool = False,
        *,
        scaling: Yarn | None = None,
        ops: OpSet = REFERENCE,
    ) -> None:
        """Keep the settings; angles are computed where they are used."""
        if dims % 2:
            raise ValueError(f"dims: expected an even number to pair, got {dims}")
        self.dims = dims
        self.seq_len = seq_len
        self.base = base
        self.traditional = traditional
        self.scaling = scaling
        self.ops = ops

    def __call__(
        self, x: Float[mx.array, "B L H D"], offset: Positions | None = None
    ) -> Float[mx.array, "B L H D"]:
        """Rotate queries or keys.

        Args:
            x: the heads, tokens before heads.
            offset: the positions of the L tokens: `slice(5, 10)` for all rows, one slice for each
                row, an integer array (which nothing checks against `seq_len`: looking would force
                the graph to be computed), or None for 0..L-1.

        Raises:
            ValueError: if a slice does not cover L positions, or ends beyond `seq_len`.
        """
        if x.shape[-1] != self.dims:
            raise ValueError(f"x: expected head dim {self.dims}, got shape {tuple(x.shape)}")
        positions = slice(0, x.shape[1]) if offset is None else offset
        self.check(positions, x.shape[1])
        return self.ops.rope(x, positions, self.base, self.traditional, self.scaling)

    @property
    def rotary(self) -> Rotary:
        """The settings, as ops take them."""
        return Rotary(self.base, self.traditional, self.scaling)

    def check(self, positions: Positions, length: int) -> None:
        """Refuse slices that do not cover `length` positions of the text.

        Raises:
            ValueError: naming what was expected.
        """
        for row in _slices(positions):
            start = slice_start(row, length)
            if start + length > self.seq_len:
                raise ValueError(
                    f"offset: expected positions below {self.seq_len}, "
                    f"got {start}..{start + length - 1}"
                )


def _slices(positions: Positions) -> Sequence[slice]:
    """The slices that positions consist of; an array has none."""
    if isinstance(positions, slice):
        return [positions]
    return [] if isinstance(positions, mx.array) else positions
