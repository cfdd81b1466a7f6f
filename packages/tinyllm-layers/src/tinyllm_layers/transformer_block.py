"""Attention and MLP (or experts), each added to what flows by."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float

from tinyllm_layers.grouped_query_attention import GroupedQueryAttention
from tinyllm_layers.layer_cache import LayerCache
from tinyllm_layers.mlp import MLP
from tinyllm_layers.moe import MoE
from tinyllm_layers.rms_norm import RMSNorm


class TransformerBlock:
    """h = x + attention(norm1(x)); out = h + mlp(norm2(h)): the pre-norm residual block."""

    def __init__(
        self,
        attention: GroupedQueryAttention,
        mlp: MLP | MoE,
        attention_norm: RMSNorm,
        mlp_norm: RMSNorm,
    ) -> None:
        """Hold the parts."""
        self.attention = attention
        self.mlp = mlp
        self.attention_norm = attention_norm
        self.mlp_norm = mlp_norm
        self._attention_block = attention.block(attention_norm)
        self._mlp_block = None if isinstance(mlp, MoE) else mlp.block(mlp_norm)

    def __call__(self, x: Float[mx.array, "B L E"], cache: LayerCache) -> Float[mx.array, "B L E"]:
        """Pass L tokens through the block, whose keys and values `cache` holds."""
        ops = self.attention.ops
        self.attention.rope.check(cache.positions(x.shape[1]), x.shape[1])
        h = cache.attention_block(x, self._attention_block, ops)
        if self._mlp_block is None:
            return h + self.mlp(self.mlp_norm(h))
        return ops.mlp_block(h, self._mlp_block)
