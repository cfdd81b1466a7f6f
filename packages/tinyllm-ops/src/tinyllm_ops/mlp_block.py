"""The feed-forward half of a transformer block, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from tinyllm_ops.contract import Weight
from tinyllm_ops.norm import Norm


@dataclass(frozen=True, eq=False)
class MlpBlock:
    """Weights from the norm to the residual; `OpSet.mlp_block` computes them.

    Attributes:
        norm: what normalizes the input.
        gate: `F E`.
        up: `F E`.
        down: `E F`.
        residual: whether x is added, as in `AttentionBlock`.
    """

    norm: Norm
    gate: Weight
    up: Weight
    down: Weight
    residual: bool = True
