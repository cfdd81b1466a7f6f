"""A transformer block, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from tinyllm_ops.attention_block import AttentionBlock
from tinyllm_ops.mlp_block import MlpBlock
from tinyllm_ops.moe_block import MoeBlock


@dataclass(frozen=True, eq=False)
class Block:
    """Both halves of a block, one after the other.

    Attributes:
        attention: from the first norm to the first residual.
        mlp: from the second norm to the second residual.
    """

    attention: AttentionBlock
    mlp: MlpBlock | MoeBlock
