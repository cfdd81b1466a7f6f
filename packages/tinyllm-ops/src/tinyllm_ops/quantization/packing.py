"""Codes of a few bits as a stream of 32-bit words."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import UInt32


def pack(codes: UInt32[mx.array, "*lead I"], bits: int) -> UInt32[mx.array, "*lead words"]:
    """Lay codes end to end, lowest bit first, and cut the stream into words of 32 bits."""
    stream = (codes[..., None] >> mx.arange(bits, dtype=mx.uint32)) & 1  # *lead I bits
    words = stream.reshape(*codes.shape[:-1], codes.shape[-1] * bits // 32, 32)
    return (words << mx.arange(32, dtype=mx.uint32)).sum(-1).astype(mx.uint32)


def unpack(packed: UInt32[mx.array, "*lead words"], bits: int) -> UInt32[mx.array, "*lead I"]:
    """Undo `pack`. Code i is the `bits` bits from bit i*bits on, which may lie in two words."""
    if 32 % bits == 0:  # every code lies in one word
        codes = packed[..., None] >> mx.arange(0, 32, bits, dtype=mx.uint32)
        codes = codes.reshape(*packed.shape[:-1], packed.shape[-1] * 32 // bits)
    else:
        start = mx.arange(packed.shape[-1] * 32 // bits) * bits
        word, shift = start // 32, (start % 32).astype(mx.uint64)
        low = packed[..., word].astype(mx.uint64)
        high = packed[..., mx.minimum(word + 1, packed.shape[-1] - 1)].astype(mx.uint64)
        two_words = mx.bitwise_or(mx.left_shift(high, 32), low)
        codes = mx.right_shift(two_words, shift).astype(mx.uint32)
    return mx.bitwise_and(codes, 2**bits - 1)
