"""A packed weight whose rows lie in memory as native products want them."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
from jaxtyping import Shaped, UInt32
from tinyllm_ops import QuantizedTensor


class InterleavedTensor(QuantizedTensor):
    """A `QuantizedTensor` whose rows lie side by side: of a few first their first words, and so on.

    To everything but the extension it is the tensor that it was made of: `packed`, `scales` and
    `biases` have MLX's layout, for which they are copied whenever somebody computes with them.

    Attributes:
        interleaved: codes, scales and biases as they lie in memory, in the shapes of the parts.
        rows: how many lie side by side.
    """

    interleaved: tuple[mx.array, ...]
    rows: int

    def __init__(self, w: QuantizedTensor, rows: int) -> None:
        """Copy a weight.

        Args:
            w: affine codes, shape `*lead N I`.
            rows: how many lie side by side, a divisor of N.
        """
        fields = {
            "group_size": w.group_size,
            "bits": w.bits,
            "mode": w.mode,
            "interleaved": tuple(_interleaved(part, rows) for part in w.arrays),
            "rows": rows,
        }
        self.__dict__.update(fields)  # the class is frozen

    @property
    def packed(self) -> UInt32[mx.array, "*lead words"]:
        """Codes, shape `*lead N I*bits/32`."""
        return self._part(0)

    @property
    def scales(self) -> Shaped[mx.array, "*lead groups"]:
        """Shape `*lead N I/group_size`."""
        return self._part(1)

    @property
    def biases(self) -> Shaped[mx.array, "*lead groups"]:
        """As scales."""
        return self._part(2)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor that the codes stand for, `*lead N I`."""
        *lead, words = self.interleaved[0].shape
        return (*lead, words * 32 // self.bits)

    @property
    def nbytes(self) -> int:
        """Bytes that the packed form occupies."""
        return sum(part.nbytes for part in self.interleaved)

    @property
    def plain(self) -> QuantizedTensor:
        """The tensor in MLX's layout."""
        return QuantizedTensor(
            self.packed, self.scales, self.biases, self.group_size, self.bits, self.mode
        )

    def map(self, transform: Callable[[mx.array], mx.array]) -> QuantizedTensor:
        """Apply `transform` to each part in MLX's layout."""
        return self.plain.map(transform)

    def _part(self, index: int) -> mx.array:
        part = self.interleaved[index]
        *lead, n, width = part.shape
        blocks = part.reshape(*lead, n // self.rows, width, self.rows)
        return blocks.swapaxes(-1, -2).reshape(part.shape)


def _interleaved(part: mx.array, rows: int) -> mx.array:
    *lead, n, width = part.shape
    blocks = part.reshape(*lead, n // rows, rows, width).swapaxes(-1, -2)
    return mx.contiguous(blocks).reshape(part.shape)
