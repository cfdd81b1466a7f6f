"""The attention half of a transformer block, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from tinyllm_ops.norm import Norm
from tinyllm_ops.projection import Projection
from tinyllm_ops.rotary import Rotary


@dataclass(frozen=True, eq=False)
class AttentionBlock:
    """Weights and settings from the norm to the residual; `OpSet.attention_block` computes them.

    Attributes:
        norm: what normalizes the input, or None if it comes normalized.
        q: `(H*D) E`.
        k: `(Hkv*D) E`.
        v: `(Hkv*D) E`.
        o: `E (H*D)`.
        head_dim: D.
        rotary: how positions turn queries and keys.
        q_norm: what normalizes each query head, or None.
        k_norm: what normalizes each key head, or None.
        residual: whether x is added. Of a block whose heads several machines share, one adds it:
            what leaves the whole block is the sum of what leaves its parts.
    """

    norm: Norm | None
    q: Projection
    k: Projection
    v: Projection
    o: Projection
    head_dim: int
    rotary: Rotary
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    residual: bool = True

    @property
    def num_heads(self) -> int:
        """Query heads, H."""
        return self.q.weight.shape[0] // self.head_dim

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads, Hkv."""
        return self.k.weight.shape[0] // self.head_dim

    @property
    def scale(self) -> float:
        """What scores are multiplied with, 1/sqrt(D)."""
        return float(self.head_dim**-0.5)
