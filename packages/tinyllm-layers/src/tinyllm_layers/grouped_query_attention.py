"""The attention of Qwen2, Qwen2.5 and Qwen3."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import REFERENCE, AttentionBlock, Norm, OpSet, Projection, Weight
from tinyllm_ops.contract import require_shape

from tinyllm_layers.kv_cache import KVCache
from tinyllm_layers.rms_norm import RMSNorm
from tinyllm_layers.rope import RoPE


@dataclass(frozen=True)
class Biases:
    """What is added after each projection; Qwen2 has the first three, Qwen3 none."""

    q: Float[mx.array, "q_width"] | None = None
    k: Float[mx.array, "kv_width"] | None = None
    v: Float[mx.array, "kv_width"] | None = None
    o: Float[mx.array, "E"] | None = None


class GroupedQueryAttention:
    """Attention in which groups of query heads share a key/value head (Ainslie et al. 2023).

    Project to q, k, v; normalize q and k by head (Qwen3); rotate them by position; let the cache
    append k and v and attend; project back.

    Raises:
        ValueError: if H is no multiple of Hkv, or a weight does not fit.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        wq: Weight,
        wk: Weight,
        wv: Weight,
        wo: Weight,
        *,
        rope: RoPE,
        biases: Biases = Biases(),
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
        ops: OpSet = REFERENCE,
    ) -> None:
        """Hold the weights: wq `(H*D) E`, wk and wv `(Hkv*D) E`, wo `E (H*D)`; D is its own."""
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            raise ValueError(
                f"num_heads: expected a multiple of {num_kv_heads} key/value heads, got {num_heads}"
            )
        width, kv_width = num_heads * head_dim, num_kv_heads * head_dim
        for name, w, bias, shape in (
            ("q", wq, biases.q, (width, hidden_size)),
            ("k", wk, biases.k, (kv_width, hidden_size)),
            ("v", wv, biases.v, (kv_width, hidden_size)),
            ("o", wo, biases.o, (hidden_size, width)),
        ):
            require_shape(f"w{name}", w, shape)
            if bias is not None:
                require_shape(f"biases.{name}", bias, shape[:1])
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.wq, self.wk, self.wv, self.wo = wq, wk, wv, wo
        self.rope = rope
        self.biases = biases
        self.q_norm, self.k_norm = q_norm, k_norm
        self.ops = ops

    def __call__(self, x: Float[mx.array, "B L E"], cache: KVCache) -> Float[mx.array, "B L E"]:
        """Let L new tokens see themselves and everything in the cache."""
        positions, block = cache.positions(x.shape[1]), self.block(None)
        self.rope.check(positions, x.shape[1])
        q, k, v = self.ops.attention_inputs(x, block, positions)
        out = cache.attend(q, k, v, block.scale, self.ops)
        joined = out.swapaxes(1, 2).flatten(2)  # B L H*D
        return self.ops.linear(joined, self.wo, self.biases.o)

    def block(self, norm: RMSNorm | None, *, residual: bool = True) -> AttentionBlock:
        """These weights as a value for the coarse ops, with the norm before them, if any.

        Args:
            norm: the norm.
            residual: whether the ops add what they are given to what they make of it.
        """
        return AttentionBlock(
            norm=_norm(norm),
            q=Projection(self.wq, self.biases.q),
            k=Projection(self.wk, self.biases.k),
            v=Projection(self.wv, self.biases.v),
            o=Projection(self.wo, self.biases.o),
            head_dim=self.head_dim,
            rotary=self.rope.rotary,
            q_norm=_norm(self.q_norm),
            k_norm=_norm(self.k_norm),
            residual=residual,
        )


def _norm(layer: RMSNorm | None) -> Norm | None:
    """What the layer holds."""
    return None if layer is None else Norm(layer.weight, layer.eps)
