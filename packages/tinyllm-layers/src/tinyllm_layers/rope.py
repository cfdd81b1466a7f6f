"""Rotary position embedding with its settings."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_ops import REFERENCE, OpSet, Positions, Yarn
from tinyllm_ops.checks import check_positions, slice_start


@dataclass(frozen=True, eq=False)
class RoPE:
    """Rotary position embedding for texts of up to `seq_len` tokens.

    Attention only reads the settings: it normalizes and rotates with `tinyllm_ops.norm_rope`. A
    call of this layer rotates without a norm.

    Attributes:
        dims: the number of features of a head to rotate, an even number. A head may have more
            features than `dims`. The rest pass unchanged.
        seq_len: the number of tokens of the longest text.
        base: the base of the frequencies. The wavelengths of the pairs, in tokens, range from 2 pi
            to almost 2 pi * base.
        traditional: True to pair features (0, 1), (2, 3), ... instead of i with i +
            dims/2.
        scaling: the settings of YaRN, for texts longer than in training; None for no scaling.
        ops: the implementation of the maths.

    Raises:
        ValueError: if `dims` is odd.
    """

    dims: int
    seq_len: int
    base: float = 10000.0
    traditional: bool = False
    _: KW_ONLY
    scaling: Yarn | None = None
    ops: OpSet = REFERENCE

    def __post_init__(self) -> None:
        """Check that features can be paired."""
        if self.dims % 2:
            raise ValueError(f"dims: expected an even number to pair, got {self.dims}")

    def __call__(
        self,
        x: Float[mx.array, "B L H D"],
        offset: Positions | Sequence[slice] | None = None,
    ) -> Float[mx.array, "B L H D"]:
        """Rotate queries or keys.

        Args:
            x: queries or keys, with the axis of tokens before the axis of heads.
            offset: the positions of the L tokens: `slice(5, 10)` for all rows, an integer array `L`
                or `B L`, or None for 0 to L - 1. Arrays are not compared with `seq_len`, because
                reading them would force the graph to be computed. One slice per row is for the
                tests of the tiny-llm course; no model passes that.

        Raises:
            ValueError: if a head has fewer than `dims` features, or a slice does not cover L
                positions or ends beyond `seq_len`.
        """
        if x.shape[-1] < self.dims:
            raise ValueError(
                f"x: expected at least {self.dims} features per head, got shape {tuple(x.shape)}"
            )
        rows, length = x.shape[0], x.shape[1]
        if offset is None:
            offset = slice(0, length)
        if isinstance(offset, Sequence):
            positions: Positions = self._positions_of_rows(offset, rows, length)
        else:
            self.check(offset, length)
            positions = offset
        return self.ops.rope(x, positions, self.base, self.traditional, self.scaling, self.dims)

    def check(self, positions: Positions, length: int) -> None:
        """Refuse a slice that does not cover `length` positions below `seq_len`.

        Raises:
            ValueError: if the slice has another length or ends beyond `seq_len`. Arrays are not
                checked.
        """
        check_positions(positions)
        if isinstance(positions, mx.array):
            return
        start = slice_start(positions, length)
        if start + length > self.seq_len:
            raise ValueError(
                f"positions: expected numbers below {self.seq_len}, the longest text, "
                f"got {start}..{start + length - 1}: shorten the text"
            )

    def _positions_of_rows(
        self, slices: Sequence[slice], rows: int, length: int
    ) -> Integer[mx.array, "B L"]:
        """Return the positions in one slice per row, after the checks of `check`."""
        if len(slices) != rows:
            raise ValueError(f"offset: expected {rows} slices, one per row, got {len(slices)}")
        for row in slices:
            self.check(row, length)
        starts = mx.array([slice_start(row, length) for row in slices], dtype=mx.int32)
        return starts[:, None] + mx.arange(length)
