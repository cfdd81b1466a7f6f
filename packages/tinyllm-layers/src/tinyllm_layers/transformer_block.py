"""Attention and MLP (or experts), each added to what flows by."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import Block

from tinyllm_layers.grouped_query_attention import GroupedQueryAttention
from tinyllm_layers.layer_cache import LayerCache
from tinyllm_layers.mlp import MLP
from tinyllm_layers.moe import MoE
from tinyllm_layers.ranks import Ranks
from tinyllm_layers.rms_norm import RMSNorm


class TransformerBlock:
    """h = x + attention(norm1(x)); out = h + mlp(norm2(h)): the pre-norm residual block.

    Where several processes hold a part of each half, what leaves a half is the sum of what leaves
    its parts, of which one adds the residual.

    Attributes:
        attention: the first half.
        mlp: the second half.
        attention_norm: before the first half.
        mlp_norm: before the second half.
        ranks: the processes that share the block, or None.
        value: the block for the coarse ops, or None where it is shared.
    """

    def __init__(
        self,
        attention: GroupedQueryAttention,
        mlp: MLP | MoE,
        attention_norm: RMSNorm,
        mlp_norm: RMSNorm,
        ranks: Ranks | None = None,
    ) -> None:
        """Hold the parts.

        Args:
            attention: all heads, or those of this process.
            mlp: the whole of it, or the columns or experts of this process.
            attention_norm: what normalizes the input of attention.
            mlp_norm: what normalizes the input of the MLP.
            ranks: the processes that share the block, None where it is whole.
        """
        self.attention = attention
        self.mlp = mlp
        self.attention_norm = attention_norm
        self.mlp_norm = mlp_norm
        self.ranks = ranks
        residual = ranks is None or ranks.adds_residual
        self._attention_block = attention.block(attention_norm, residual=residual)
        self._mlp_block = mlp.block(mlp_norm, residual=residual)
        self.value: Block | None = None
        if ranks is None and self._mlp_block is not None:
            self.value = Block(self._attention_block, self._mlp_block)

    def __call__(self, x: Float[mx.array, "B L E"], cache: LayerCache) -> Float[mx.array, "B L E"]:
        """Pass L tokens through the block, whose keys and values `cache` holds."""
        ops = self.attention.ops
        self.check_positions(x, cache)
        h = self._whole(cache.attention_block(x, self._attention_block, ops))
        if self._mlp_block is None:
            return h + self._whole(self.mlp(self.mlp_norm(h)))
        return self._whole(ops.feed_forward(h, self._mlp_block))

    def check_positions(self, x: Float[mx.array, "B L E"], cache: LayerCache) -> None:
        """Raise ValueError if tokens would stand beyond the context; see `RoPE.check`."""
        self.attention.rope.check(cache.positions(x.shape[1]), x.shape[1])

    def _whole(self, part: Float[mx.array, "B L E"]) -> Float[mx.array, "B L E"]:
        """The sum of what all processes have."""
        return part if self.ranks is None else self.ranks.sum(part)
