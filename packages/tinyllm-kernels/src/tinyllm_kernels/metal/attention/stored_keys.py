"""Formats of cached keys and values: dense numbers, or affine codes with scales and biases."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from tinyllm_ops import QuantizedTensor, Weight
from tinyllm_ops.quantization.tensor import AFFINE


@dataclass(frozen=True)
class KeyFormat:
    """Parts of a kernel's text that depend on the format of keys and values.

    Attributes:
        suffix: suffix of the kernel's name.
        inputs: names of the arrays of keys and values.
        declaration: statements that declare `keys` and `values`. They use a variable `head`, whose
            function `rows` selects the rows of a key/value head in an array.
    """

    suffix: str
    inputs: tuple[str, ...]
    declaration: str


DENSE = KeyFormat(
    "",
    ("k", "v"),
    """
    const auto keys = head.rows(k, k_strides);
    const auto values = head.rows(v, v_strides);
    """,
)
PACKED = KeyFormat(
    "_packed",
    ("k", "k_scales", "k_biases", "v", "v_scales", "v_biases"),
    """
    const auto keys = packed_rows<K_BITS, K_GROUP_SIZE>(
        head.rows(k, k_strides), head.rows(k_scales, k_scales_strides),
        head.rows(k_biases, k_biases_strides));
    const auto values = packed_rows<V_BITS, V_GROUP_SIZE>(
        head.rows(v, v_strides), head.rows(v_scales, v_scales_strides),
        head.rows(v_biases, v_biases_strides));
    """,
)


@dataclass(frozen=True)
class StoredKeys:
    """Keys and values of one call.

    Attributes:
        format: selects the kernel.
        arrays: inputs of the kernel, with four axes each. The last axis is one key or value.
        template: template arguments of the kernel.
    """

    format: KeyFormat
    arrays: tuple[mx.array, ...]
    template: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, k: Weight, v: Weight) -> "StoredKeys | None":
        """Make the inputs of a kernel from k and v. Return None for a format without a kernel.

        There is no kernel for floating-point codes, nor if only one of k and v is quantized.
        """
        if isinstance(k, mx.array) and isinstance(v, mx.array):
            return cls(DENSE, (k, v))
        if not (isinstance(k, QuantizedTensor) and isinstance(v, QuantizedTensor)):
            return None
        if k.mode != AFFINE or v.mode != AFFINE:
            return None
        template = (
            *(("K_BITS", k.bits), ("K_GROUP_SIZE", k.group_size)),
            *(("V_BITS", v.bits), ("V_GROUP_SIZE", v.group_size)),
        )
        return cls(PACKED, (*k.arrays, *v.arrays), template)

    def map(self, transform: Callable[[mx.array], mx.array]) -> "StoredKeys":
        """Apply `transform`, which must keep the last axis, to each array."""
        return StoredKeys(self.format, tuple(map(transform, self.arrays)), self.template)

    def first(self, count: int) -> "StoredKeys":
        """Return the first `count` keys and values of each head in a dense cache."""
        return self.map(lambda part: part[:, :, :count])

    @property
    def leading_shape(self) -> tuple[int, int, int]:
        """Shape without the last axis: `B Hkv S` for a dense cache, `P Hkv page` for pages."""
        first, heads, tokens, _ = self.arrays[0].shape
        return first, heads, tokens
