"""A quantized weight whose rows are interleaved in the order in which native products read them."""

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Shaped, UInt32
from tinyllm_ops import QuantizationMode, QuantizedTensor


class InterleavedTensor(QuantizedTensor):
    """A `QuantizedTensor` stored with interleaved rows.

    Memory holds the first words of `rows` consecutive rows, then the second words of these rows,
    and so on. The extension makes this layout (`interleave`) and reads it. All other code sees an
    ordinary tensor: `packed`, `scales` and `biases` have MLX's layout. Each access to one of these
    properties makes a copy.

    Attributes:
        interleaved: codes, scales and, in mode "affine", biases as stored, in the shapes of
            `packed`, `scales` and `biases`.
        rows: number of rows that are interleaved.
    """

    interleaved: tuple[mx.array, ...]
    rows: int

    def __init__(
        self,
        interleaved: Sequence[mx.array],
        rows: int,
        group_size: int,
        bits: int,
        mode: QuantizationMode,
    ) -> None:
        """Store the arrays of a weight, shape `*lead N I`.

        Args:
            interleaved: codes, scales and, in mode "affine", biases with interleaved rows.
            rows: number of rows that are interleaved, a divisor of N.
            group_size: numbers that share a scale and a bias.
            bits: the width of a code.
            mode: "affine", "mxfp4" or "nvfp4".
        """
        form = {"group_size": group_size, "bits": bits, "mode": mode}
        # The class is frozen, so the fields are set through __dict__.
        self.__dict__.update(form, interleaved=tuple(interleaved), rows=rows)

    @property
    def packed(self) -> UInt32[mx.array, "*lead words"]:
        """Codes in MLX's layout, shape `*lead N I*bits/32`."""
        return self._deinterleave(0)

    @property
    def scales(self) -> Shaped[mx.array, "*lead groups"]:
        """The scale of each group in MLX's layout, shape `*lead N I/group_size`."""
        return self._deinterleave(1)

    @property
    def biases(self) -> Shaped[mx.array, "*lead groups"] | None:
        """The bias of each group in MLX's layout, shape `*lead N I/group_size`, or None."""
        return self._deinterleave(2) if len(self.interleaved) > 2 else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the decoded tensor, `*lead N I`."""
        *lead, words = self.interleaved[0].shape
        return (*lead, words * 32 // self.bits)

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, scales and biases."""
        return sum(array.nbytes for array in self.interleaved)

    def _deinterleave(self, index: int) -> mx.array:
        stored = self.interleaved[index]
        *lead, n, width = stored.shape
        groups = stored.reshape(*lead, n // self.rows, width, self.rows)
        return groups.swapaxes(-1, -2).reshape(stored.shape)
