"""What a transformer block asks of whoever holds keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import AttentionBlock, Block, OpSet, Positions


@runtime_checkable
class LayerCache(Protocol):
    """The keys and values of one layer.

    The cache owns their layout: a block hands over its new tokens and gets what attention makes of
    them back, and whether keys are dense, rotating, quantized or paged, and whose they are, is
    nobody else's business. Where new tokens stand, for RoPE, is the cache's to say as well.
    """

    @property
    def arrays(self) -> list[mx.array]:
        """What the cache stores, to be evaluated at the end of a prefill chunk."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes allocated, room to grow included."""
        return sum(array.nbytes for array in self.arrays)

    def positions(self, length: int) -> Positions:
        """Where the next `length` tokens of each row stand."""
        ...

    def attention_block(
        self, x: Float[mx.array, "B L E"], block: AttentionBlock, ops: OpSet
    ) -> Float[mx.array, "B L E"]:
        """Pass L new tokens through the attention half of a block, and keep their keys and values.

        Each token sees all that its text has before it, and itself.
        """
        ...

    def blocks(
        self,
        x: Float[mx.array, "B L E"],
        blocks: Sequence[Block],
        others: Sequence[LayerCache],
        ops: OpSet,
    ) -> Float[mx.array, "B L E"]:
        """Pass L new tokens through several blocks, of which this cache is the first one's.

        Here one by one; caches whose layout the ops know are handed to them all at once.

        Args:
            x: the tokens.
            blocks: one after the other.
            others: the caches of all blocks but the first.
            ops: what computes.
        """
        for block, cache in zip(blocks, (self, *others), strict=True):
            x = ops.feed_forward(cache.attention_block(x, block.attention, ops), block.mlp)
        return x
