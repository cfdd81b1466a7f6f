"""Multi-head attention as the paper draws it: a key for each query head, no cache, no positions."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import REFERENCE, OpSet, Weight
from tinyllm_ops.contract import require_shape


class SimpleMultiHeadAttention:
    """Project, split into heads, attend, join, project (Vaswani et al. 2017).

    Raises:
        ValueError: if `num_heads` does not divide `hidden_size`, or a weight is not `E E`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        wq: Weight,
        wk: Weight,
        wv: Weight,
        wo: Weight,
        *,
        ops: OpSet = REFERENCE,
    ) -> None:
        """Hold the projections: wq, wk, wv of shape `(H*D) E`, wo of shape `E (H*D)`."""
        if num_heads < 1 or hidden_size % num_heads:
            raise ValueError(
                f"num_heads: expected a divisor of hidden_size {hidden_size}, got {num_heads}"
            )
        for name, w in (("wq", wq), ("wk", wk), ("wv", wv), ("wo", wo)):
            require_shape(name, w, (hidden_size, hidden_size))
        self.num_heads = num_heads
        self.wq, self.wk, self.wv, self.wo = wq, wk, wv, wo
        self.ops = ops

    def __call__(
        self,
        query: Float[mx.array, "B L E"],
        key: Float[mx.array, "B S E"],
        value: Float[mx.array, "B S E"],
        mask: Float[mx.array, "..."] | str | None = None,
    ) -> Float[mx.array, "B L E"]:
        """Let each of the L queries gather from the S values."""
        out = self.ops.attention(
            self._heads(query, self.wq),
            self._heads(key, self.wk),
            self._heads(value, self.wv),
            mask=mask,
        )
        joined = out.swapaxes(1, 2).flatten(2)  # B L E
        return self.ops.linear(joined, self.wo)

    def _heads(self, x: mx.array, w: Weight) -> Float[mx.array, "B H L D"]:
        """Project and move the heads before the tokens."""
        projected = mx.unflatten(self.ops.linear(x, w), -1, (self.num_heads, -1))  # B L H D
        return projected.swapaxes(1, 2)
