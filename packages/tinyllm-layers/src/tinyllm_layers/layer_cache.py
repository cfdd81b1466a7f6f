"""What attention asks of whoever holds keys and values."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import AttentionBlock, OpSet, Positions


@runtime_checkable
class LayerCache(Protocol):
    """The keys and values of one layer.

    The cache owns their layout: attention hands over its new q, k and v and gets the output back,
    and whether keys are dense, rotating, quantized or paged, and whose they are, is nobody else's
    business. Where new tokens stand, for RoPE, is the cache's to say as well.
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
