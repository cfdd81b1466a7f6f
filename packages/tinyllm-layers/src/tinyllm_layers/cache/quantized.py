"""A quantized cache: keys and values in a few bits per number."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import REFERENCE, OpSet, QuantizedTensor
from tinyllm_ops.checks import check_appended, check_new_tokens
from tinyllm_ops.quantization.tensor import check_format

from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import KVCache
from tinyllm_layers.cache.dense import TokenBuffer


class QuantizedCache(KVCache):
    """A cache that stores every key and value affine-quantized, in groups along the head dim.

    Attributes:
        bits: width of a code, usually 4 or 8.
        group_size: features that share a scale and a bias, a divisor of the head dim.

    Raises:
        ValueError: if MLX does not define the format.
    """

    def __init__(self, bits: int = 8, group_size: int = 64) -> None:
        """Make an empty cache."""
        check_format(group_size, bits, "affine")
        self.bits = bits
        self.group_size = group_size
        self._keys = [TokenBuffer() for _ in range(3)]  # packed, scales, biases
        self._values = [TokenBuffer() for _ in range(3)]

    @property
    def offset(self) -> int:
        """The number of tokens seen so far."""
        return self._keys[0].length

    @property
    def arrays(self) -> list[mx.array]:
        """The packed codes, scales and biases of keys and values."""
        return [array for buffer in [*self._keys, *self._values] for array in buffer.arrays]

    def update(
        self,
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
        ops: OpSet = REFERENCE,
    ) -> tuple[QuantizedTensor, QuantizedTensor]:
        """Quantize and append keys and values, and return the keys and values of all tokens."""
        check_appended(k, v, self._shape, self._keys[1].dtype)
        updated = self._extended(k, v, ops)
        self._commit(updated, k.shape[2])
        keys, values = (self._tensor(parts, self.offset) for parts in updated)
        return keys, values

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
        check_new_tokens(q, k, v, (batch.rows, batch.length), self._shape, self._keys[1].dtype)
        updated = self._extended(k, v, ops)
        keys, values = (self._tensor(parts, self.offset + k.shape[2]) for parts in updated)
        mask = "causal" if q.shape[2] > 1 else None
        out = ops.attention(q, keys, values, scale, mask, phase=batch.phase)
        self._commit(updated, k.shape[2])
        return out

    def set_expected_length(self, length: int) -> None:
        """Prepare for a text of `length` tokens: see `SequenceCache.set_expected_length`."""
        for buffer in [*self._keys, *self._values]:
            buffer.expected_length = length

    def can_trim(self, length: int) -> bool:
        """Return True if the cache holds at least `length` tokens."""
        return 0 <= length <= self.offset

    def trim(self, length: int) -> None:
        """Remove all but the first `length` tokens."""
        for buffer in [*self._keys, *self._values]:
            buffer.trim(length)

    def fork(self) -> QuantizedCache:
        """Return a second cache with the same tokens."""
        fork = QuantizedCache(self.bits, self.group_size)
        fork._keys = [buffer.fork() for buffer in self._keys]
        fork._values = [buffer.fork() for buffer in self._values]
        return fork

    @property
    def _shape(self) -> tuple[int, ...] | None:
        """The shape `B Hkv capacity D` of the stored keys; None before the first tokens."""
        packed = self._keys[0].shape
        return None if packed is None else (*packed[:-1], packed[-1] * 32 // self.bits)

    def _extended(self, k: mx.array, v: mx.array, ops: OpSet) -> list[list[mx.array]]:
        """Return updated arrays in which k and v are appended.

        Returns:
            Two lists, one for keys and one for values: packed codes, scales and biases.
        """
        return [
            [
                buffer.extended(part)
                for buffer, part in zip(
                    buffers, ops.quantize(x, self.group_size, self.bits).arrays, strict=True
                )
            ]
            for buffers, x in ((self._keys, k), (self._values, v))
        ]

    def _commit(self, updated: list[list[mx.array]], count: int) -> None:
        """Replace the arrays by updated arrays, which hold `count` more tokens."""
        for buffers, parts in zip((self._keys, self._values), updated, strict=True):
            for buffer, part in zip(buffers, parts, strict=True):
                buffer.commit(part, count)

    def _tensor(self, parts: list[mx.array], length: int) -> QuantizedTensor:
        """Make a tensor of the first `length` tokens of packed codes, scales and biases."""
        packed, scales, biases = (part[..., :length, :] for part in parts)
        return QuantizedTensor(packed, scales, biases, self.group_size, self.bits)
