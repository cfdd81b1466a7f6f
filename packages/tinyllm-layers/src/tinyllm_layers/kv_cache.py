"""The cache of one sequence."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import AttentionBlock, OpSet, Positions

from tinyllm_layers.layer_cache import LayerCache


@runtime_checkable
class KVCache(LayerCache, Protocol):
    """The keys and values of one layer, for the tokens that one sequence has seen.

    New tokens come after those seen, and a prefix can be gone back to.
    """

    @property
    def offset(self) -> int:
        """Tokens seen so far: the position of the next one."""
        ...

    def positions(self, length: int) -> Positions:
        """Where the next `length` tokens stand: after those seen, unless a cache knows better."""
        return slice(self.offset, self.offset + length)

    def attend(
        self,
        q: Float[mx.array, "B H L D"],
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
        scale: float,
        ops: OpSet,
    ) -> Float[mx.array, "B H L D"]:
        """Append k and v, and attend from q to every token that it may see, itself included."""
        ...

    def attention_block(
        self, x: Float[mx.array, "B L E"], block: AttentionBlock, ops: OpSet
    ) -> Float[mx.array, "B L E"]:
        """Pass L new tokens through the attention half of a block, and keep their keys and values.

        Here by way of `attend`; a cache whose layout the ops know hands it to them as a whole.
        """
        q, k, v = ops.attention_inputs(x, block, self.positions(x.shape[1]))
        return ops.attention_output(x, self.attend(q, k, v, block.scale, ops), block)

    def can_trim(self, length: int) -> bool:
        """Whether the cache can go back to its first `length` tokens."""
        ...

    def trim(self, length: int) -> None:
        """Forget all but the first `length` tokens.

        Raises:
            ValueError: if `can_trim(length)` is false.
        """
        ...
