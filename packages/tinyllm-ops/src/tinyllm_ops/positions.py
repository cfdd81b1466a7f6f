"""Positions of tokens in their sequences."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Integer

Positions = slice | Sequence[slice] | mx.array


def position_array(
    positions: Positions, batch: int, length: int
) -> Integer[mx.array, "rows {length}"]:
    """Write positions out as integers, with one row for all (`1 L`) or one for each (`B L`).

    Args:
        positions: `slice(5, 10)` puts token 0 of every row at position 5. A list holds one slice
            for each row. An integer array of shape `L`, `1 L` or `B L` is taken as it is.
        batch: number of rows, B.
        length: tokens per row, L.

    Raises:
        ValueError: if a slice does not cover exactly L positions from 0 on, a list does not hold B
            slices, or an array has another shape or dtype.
    """
    check_positions(positions)
    if isinstance(positions, slice):
        start = slice_start(positions, length)
        return mx.arange(start, start + length)[None]
    if isinstance(positions, mx.array):
        if not mx.issubdtype(positions.dtype, mx.integer):
            raise ValueError(f"positions: expected an integer dtype, got {positions.dtype}")
        if tuple(positions.shape) not in ((length,), (1, length), (batch, length)):
            raise ValueError(
                f"positions: expected shape {(length,)} or {(batch, length)}, "
                f"got {tuple(positions.shape)}"
            )
        return positions.reshape(-1, length) if length else mx.zeros((1, 0), mx.int32)
    return row_starts(positions, batch, length)[:, None] + mx.arange(length)


def check_positions(positions: object) -> None:
    """Raise ValueError unless `positions` is a slice, a sequence of slices or an array."""
    if isinstance(positions, slice | mx.array):
        return
    if not (isinstance(positions, Sequence) and all(isinstance(row, slice) for row in positions)):
        raise ValueError(
            "positions: expected a slice, one slice a row or an integer array, got "
            f"{positions!r}: `slice(3, 3 + L)` starts at 3"
        )


def row_starts(
    positions: Sequence[slice], batch: int, length: int
) -> Integer[mx.array, " {batch}"]:
    """Return the first position of each row, from one slice for each row."""
    if len(positions) != batch:
        raise ValueError(f"positions: expected {batch} slices, one a row, got {len(positions)}")
    return mx.array([slice_start(row, length) for row in positions], dtype=mx.int32)


def slice_start(positions: slice, length: int) -> int:
    """Return the first of the `length` positions that a slice stands for.

    Raises:
        ValueError: if the slice has a step, starts below 0 or has another length.
    """
    start = positions.start or 0
    stop = start + length if positions.stop is None else positions.stop
    if start < 0 or positions.step not in (None, 1) or stop - start != length:
        raise ValueError(f"positions: expected a slice of {length} positions, got {positions}")
    return int(start)
