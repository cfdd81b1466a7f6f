"""Keys and values as the kernels are given them: numbers, or codes with scales and biases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from tinyllm_ops import QuantizedTensor, Weight
from tinyllm_ops.quantized_tensor import AFFINE


@dataclass(frozen=True)
class KeyFormat:
    """What the text of a kernel says of keys and values.

    Attributes:
        name: comes behind the kernel's.
        inputs: names of their arrays.
        body: declares `keys` and `values`, whose place in each array `place` knows.
    """

    name: str
    inputs: tuple[str, ...]
    body: str


DENSE = KeyFormat(
    "",
    ("k", "v"),
    """
    const auto keys = place.rows(k, k_strides);
    const auto values = place.rows(v, v_strides);
    """,
)
PACKED = KeyFormat(
    "_packed",
    ("k", "k_scales", "k_biases", "v", "v_scales", "v_biases"),
    """
    const auto keys = packed_rows<K_BITS, K_GROUP_SIZE>(
        place.rows(k, k_strides), place.rows(k_scales, k_scales_strides),
        place.rows(k_biases, k_biases_strides));
    const auto values = packed_rows<V_BITS, V_GROUP_SIZE>(
        place.rows(v, v_strides), place.rows(v_scales, v_scales_strides),
        place.rows(v_biases, v_biases_strides));
    """,
)


@dataclass(frozen=True)
class StoredKeys:
    """Keys and values of a call.

    Attributes:
        format: which kernel reads them.
        arrays: its inputs, each of four axes, of which the last is a key's.
        template: its constants.
    """

    format: KeyFormat
    arrays: tuple[mx.array, ...]
    template: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, k: Weight, v: Weight) -> StoredKeys | None:
        """None in a format that is left to MLX: floating-point modes, packed keys alone."""
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

    def map(self, transform: Callable[[mx.array], mx.array]) -> StoredKeys:
        """Apply `transform`, which must leave the last axis alone, to each array."""
        return StoredKeys(self.format, tuple(map(transform, self.arrays)), self.template)

    @property
    def lead(self) -> tuple[int, int, int]:
        """The axes before the last one: of dense keys `B Hkv S`, of pages `P Hkv page`."""
        first, heads, tokens, _ = self.arrays[0].shape
        return first, heads, tokens
