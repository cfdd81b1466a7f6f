"""Keys and values in a few bits."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import OpSet, QuantizedTensor
from tinyllm_ops.quantized_tensor import check_format

from tinyllm_layers.kv_cache import KVCache
from tinyllm_layers.token_buffer import TokenBuffer


class QuantizedCache(KVCache):
    """Every key and value, affine-quantized in groups along the head dim as it arrives.

    Attributes:
        bits: width of a code, 4 or 8 usually.
        group_size: features that share a scale and a bias; it must divide the head dim.

    Raises:
        ValueError: if MLX has no such format.
    """

    def __init__(self, bits: int = 8, group_size: int = 64) -> None:
        """Start empty."""
        check_format(group_size, bits, "affine")
        self.bits = bits
        self.group_size = group_size
        self._keys = [TokenBuffer() for _ in range(3)]  # packed, scales, biases
        self._values = [TokenBuffer() for _ in range(3)]

    @property
    def offset(self) -> int:
        """Tokens seen so far."""
        return self._keys[0].length

    @property
    def arrays(self) -> list[mx.array]:
        """The packed codes, scales and biases of keys and values."""
        return [array for buffer in [*self._keys, *self._values] for array in buffer.arrays]

    def attend(
        self,
        q: Float[mx.array, "B H L D"],
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
        scale: float,
        ops: OpSet,
    ) -> Float[mx.array, "B H L D"]:
        """Quantize and append k and v, and attend causally to all that is there.

        The new tokens, too, are seen through their codes, so that the size of a prefill chunk
        does not change the result.
        """
        keys = self._append(self._keys, k, ops)
        values = self._append(self._values, v, ops)
        mask = "causal" if q.shape[2] > 1 else None
        return ops.attention(q, keys, values, scale, mask)

    def can_trim(self, length: int) -> bool:
        """Any prefix can be gone back to."""
        return 0 <= length <= self.offset

    def trim(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        for buffer in [*self._keys, *self._values]:
            buffer.trim(length)

    def _append(self, buffers: list[TokenBuffer], x: mx.array, ops: OpSet) -> QuantizedTensor:
        """Store the codes of x, and return those of all tokens."""
        codes = ops.quantize(x, self.group_size, self.bits)
        for buffer, part in zip(buffers, codes.arrays, strict=True):
            buffer.append(part)
        packed, scales, biases = (buffer.filled for buffer in buffers)
        return QuantizedTensor(packed, scales, biases, self.group_size, self.bits)
