"""Multi-head attention as in Vaswani et al.: a key head per query head, no cache, no positions."""

from dataclasses import KW_ONLY, dataclass

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import REFERENCE, Mask, OpSet, Weight
from tinyllm_ops.checks import require_shape


@dataclass(frozen=True, eq=False)
class SimpleMultiHeadAttention:
    """Multi-head attention (Vaswani et al. 2017).

    The layer projects its inputs, splits them into H heads of D = E/H features, computes attention
    in each head, joins the heads, and projects the result.

    Attributes:
        hidden_size: E.
        num_heads: H, a divisor of E.
        wq: the projection to queries, `(H*D) E`.
        wk: the projection to keys, `(H*D) E`.
        wv: the projection to values, `(H*D) E`.
        wo: the output projection, `E (H*D)`.
        ops: the implementation of the maths.

    Raises:
        ValueError: if `num_heads` does not divide `hidden_size`, or a weight is not `E E`.
    """

    hidden_size: int
    num_heads: int
    wq: Weight
    wk: Weight
    wv: Weight
    wo: Weight
    _: KW_ONLY
    ops: OpSet = REFERENCE

    def __post_init__(self) -> None:
        """Check the weights."""
        width = self.hidden_size
        if self.num_heads < 1 or width % self.num_heads:
            raise ValueError(
                f"num_heads: expected a divisor of hidden_size {width}, got {self.num_heads}"
            )
        for name, w in (("wq", self.wq), ("wk", self.wk), ("wv", self.wv), ("wo", self.wo)):
            require_shape(name, w, (width, width))

    def __call__(
        self,
        query: Float[mx.array, "B L E"],
        key: Float[mx.array, "B S E"],
        value: Float[mx.array, "B S E"],
        mask: Mask = None,
    ) -> Float[mx.array, "B L E"]:
        """Attend from L queries to S keys.

        Args:
            query: the L tokens that attend.
            key: the S tokens that are attended to.
            value: the S tokens whose projections are averaged, usually the same tokens as `key`.
            mask: "causal", an array that is added to the scores, or a boolean array that is True
                where a key is visible; None for no mask. Arrays are broadcast to `B H L S`.
        """
        out = self.ops.attention(
            self._heads(query, self.wq),
            self._heads(key, self.wk),
            self._heads(value, self.wv),
            mask=mask,
        )
        joined = out.swapaxes(1, 2).flatten(2)  # B L E
        return self.ops.linear(joined, self.wo)

    def _heads(self, x: mx.array, w: Weight) -> Float[mx.array, "B H L D"]:
        """Project x with w, split it into heads, and move the heads before the tokens."""
        projected = mx.unflatten(self.ops.linear(x, w), -1, (self.num_heads, -1))  # B L H D
        return projected.swapaxes(1, 2)
