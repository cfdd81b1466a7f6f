"""A quantized cache: keys and values in a few bits per number."""

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Float, Shaped
from tinyllm_ops import REFERENCE, Mask, OpSet, QuantizedTensor
from tinyllm_ops.checks import check_appended, check_new_tokens
from tinyllm_ops.quantization.tensor import check_format

from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.dense import GrowingCache

PARTS = 3
"""The arrays of keys, or of values: packed codes, scales and biases."""


class QuantizedCache(GrowingCache):
    """A cache that stores every key and value affine-quantized, in groups along the head dim.

    The arrays are packed codes, scales and biases of keys, and then those of values.

    Attributes:
        bits: width of a code, usually 4 or 8.
        group_size: features that share a scale and a bias, a divisor of the head dim.

    Raises:
        ValueError: if MLX does not define the format.
    """

    __slots__ = ("bits", "group_size")

    def __init__(self, bits: int = 8, group_size: int = 64) -> None:
        """Make an empty cache."""
        check_format(group_size, bits, "affine")
        super().__init__(2 * PARTS)
        self.bits = bits
        self.group_size = group_size

    def update(
        self,
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
        ops: OpSet = REFERENCE,
    ) -> tuple[QuantizedTensor, QuantizedTensor]:
        """Quantize and append keys and values, and return the keys and values of all tokens."""
        check_appended(k, v, self._shape, self._dtype)
        updated = self._extended(k, v, ops)
        self.commit(updated, k.shape[2])
        return self._tensors(updated, self.offset)

    def attend(
        self,
        q: Float[mx.array, "B H L D"],
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
        batch: Batch,
        scale: float,
        ops: OpSet,
    ) -> Float[mx.array, "B H L D"]:
        """Quantize and append k and v, and attend causally to all tokens.

        Queries read the quantized keys and values of the new tokens too, so that the size of a
        prefill chunk does not change the result.
        """
        check_new_tokens(q, k, v, (batch.rows, batch.length), self._shape, self._dtype)
        batch.check_follows(self.offset)
        updated = self._extended(k, v, ops)
        keys, values = self._tensors(updated, self.offset + k.shape[2])
        mask: Mask = "causal" if q.shape[2] > 1 else None
        out = ops.attention(q, keys, values, scale, mask, phase=batch.phase)
        self.commit(updated, k.shape[2])
        return out

    def reserve(
        self, new_shape: Sequence[int], dtype: mx.Dtype, least: int = 0
    ) -> list[Shaped[mx.array, "B Hkv capacity _"]]:
        """Return the arrays, with capacity for new tokens.

        Raises:
            ValueError: if shape or dtype differ from the stored tokens, or D is no multiple of the
                group size.
        """
        *lead, dim = new_shape
        stored = self._shape
        if stored is not None:
            expected = (*stored[:2], new_shape[2], stored[3])
            if tuple(new_shape) != expected:
                raise ValueError(f"k: expected shape {expected}, got {tuple(new_shape)}")
            if dtype != self._dtype:
                raise ValueError(f"k: expected dtype {self._dtype}, got {dtype}")
        if dim % self.group_size:
            raise ValueError(f"k: expected a head dim in groups of {self.group_size}, got {dim}")
        codes = ((*lead, dim * self.bits // 32), mx.uint32)
        numbers = ((*lead, dim // self.group_size), dtype)
        parts = 2 * (codes, numbers, numbers)
        return [
            buffer.reserve(shape, part_dtype, least)
            for buffer, (shape, part_dtype) in zip(self._take_back(), parts, strict=True)
        ]

    def fork(self) -> "QuantizedCache":
        """Return a second cache with the same tokens."""
        fork = QuantizedCache(self.bits, self.group_size)
        fork._buffers = self._forked_buffers()
        return fork

    @property
    def _shape(self) -> tuple[int, ...] | None:
        """The shape `B Hkv capacity D` of the stored keys; None before the first tokens."""
        packed = self._take_back()[0].shape
        return None if packed is None else (*packed[:-1], packed[-1] * 32 // self.bits)

    @property
    def _dtype(self) -> mx.Dtype | None:
        """The dtype of the stored scales; None before the first tokens."""
        return self._take_back()[1].dtype

    def _extended(self, k: mx.array, v: mx.array, ops: OpSet) -> list[mx.array]:
        """Return updated arrays in which k and v are appended."""
        new = [part for x in (k, v) for part in ops.quantize(x, self.group_size, self.bits).arrays]
        pairs = zip(self._take_back(), new, strict=True)
        return [buffer.extended(part) for buffer, part in pairs]

    def _tensors(
        self, arrays: Sequence[mx.array], length: int
    ) -> tuple[QuantizedTensor, QuantizedTensor]:
        """Make the keys and values of the first `length` tokens of all arrays."""

        def tensor(packed: mx.array, scales: mx.array, biases: mx.array) -> QuantizedTensor:
            return QuantizedTensor(packed, scales, biases, self.group_size, self.bits)

        filled = [array[..., :length, :] for array in arrays]
        return tensor(*filled[:PARTS]), tensor(*filled[PARTS:])
