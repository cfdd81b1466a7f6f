"""The feed-forward half of a transformer block that is a mixture of experts, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from tinyllm_ops.contract import Weight
from tinyllm_ops.norm import Norm


@dataclass(frozen=True, eq=False)
class MoeBlock:
    """Weights from the norm to the residual; `OpSet.moe_block` computes them.

    The router scores all X experts in float32, and softmax makes shares of the scores. The K
    largest are kept, of which each is an MLP (Shazeer et al. 2017). Of equal shares the expert with
    the lower number comes first.

    Attributes:
        norm: what normalizes the input, or None where it is normal already.
        router: `X E`.
        gate: `X F E`, as up and down one matrix for each expert.
        up: `X F E`.
        down: `X E F`.
        num_experts_per_tok: K.
        norm_topk_prob: whether the shares of the chosen ones are made to add up to 1.
        residual: whether x is added, as in `AttentionBlock`.
    """

    norm: Norm | None
    router: Weight
    gate: Weight
    up: Weight
    down: Weight
    num_experts_per_tok: int
    norm_topk_prob: bool = True
    residual: bool = True
