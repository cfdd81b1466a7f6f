"""A packed weight with rows interleaved in the order in which native products read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
from jaxtyping import Shaped, UInt32
from tinyllm_ops import QuantizedTensor


class InterleavedTensor(QuantizedTensor):
    """A `QuantizedTensor` with interleaved rows: the first words of a few rows, the second, ...

    To everything but the extension, which made it (`interleave`), it is the tensor that it was
    made of: `packed`, `scales` and `biases` have MLX's layout. Each access to one of them makes a
    copy.

    Attributes:
        interleaved: codes, scales and biases as they lie in memory, in the shapes of the parts.
        rows: number of rows that are interleaved.
    """

    interleaved: tuple[mx.array, ...]
    rows: int

    def __init__(
        self, parts: Sequence[mx.array], rows: int, group_size: int, bits: int, mode: str
    ) -> None:
        """Hold a weight of affine codes, shape `*lead N I`.

        Args:
            parts: codes, scales and biases as they lie in memory.
            rows: number of rows that are interleaved, a divisor of N.
            group_size: the group size of the tensor.
            bits: the width of a code.
            mode: the mode of the tensor.
        """
        form = {"group_size": group_size, "bits": bits, "mode": mode}
        self.__dict__.update(form, interleaved=tuple(parts), rows=rows)  # the class is frozen

    @property
    def packed(self) -> UInt32[mx.array, "*lead words"]:
        """Codes, shape `*lead N I*bits/32`."""
        return self._part(0)

    @property
    def scales(self) -> Shaped[mx.array, "*lead groups"]:
        """The scale of each group, shape `*lead N I/group_size`."""
        return self._part(1)

    @property
    def biases(self) -> Shaped[mx.array, "*lead groups"]:
        """The bias of each group, in the shape of `scales`."""
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
