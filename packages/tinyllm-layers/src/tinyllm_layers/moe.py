"""A feed-forward half of many experts, of which each token uses a few."""

from __future__ import annotations

import math
from dataclasses import replace

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_ops import REFERENCE, MoeBlock, Norm, OpSet, Weight
from tinyllm_ops.contract import require_shape

from tinyllm_layers.rms_norm import RMSNorm


class MoE:
    """Mixture of experts (Shazeer et al. 2017): the sum of p_k mlp_k(x) over the best K of X.

    The router scores all X experts in float32, and softmax makes shares of the scores; the K
    largest are kept, and divided by their sum if `norm_topk_prob`. Each expert is an `MLP`.

    A layer may hold some of the experts: it gives their part of the sum, and the parts of all who
    share the experts add up to the whole (Lepikhin et al. 2020, expert parallelism).

    Attributes:
        value: the experts held, for the coarse ops: without a norm, and nothing is added.

    Raises:
        ValueError: if K is not in 1..X, or a weight has another shape than `X E` (router), and for
            the experts held `X F E` (gate, up) or `X E F` (down).
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        num_experts: int,
        num_experts_per_tok: int,
        w_router: Weight,
        w_gate: Weight,
        w_up: Weight,
        w_down: Weight,
        *,
        norm_topk_prob: bool = True,
        held: range | None = None,
        ops: OpSet = REFERENCE,
    ) -> None:
        """Hold the router and the experts' projections between `dim` (E) and `hidden_dim` (F).

        Args:
            dim: E.
            hidden_dim: F.
            num_experts: X.
            num_experts_per_tok: K.
            w_router: the router, of all experts.
            w_gate: gates of the experts held.
            w_up: what they gate.
            w_down: the way back.
            norm_topk_prob: whether the shares of the chosen ones are made to add up to 1.
            held: which experts these are; None is all.
            ops: the implementation of the maths.
        """
        if not 1 <= num_experts_per_tok <= num_experts:
            raise ValueError(
                f"num_experts_per_tok: expected 1 to {num_experts}, got {num_experts_per_tok}"
            )
        require_shape("w_router", w_router, (num_experts, dim))
        count = num_experts if held is None else len(held)
        require_shape("w_gate", w_gate, (count, hidden_dim, dim))
        require_shape("w_up", w_up, (count, hidden_dim, dim))
        require_shape("w_down", w_down, (count, dim, hidden_dim))
        self.held = held
        self.w_router = w_router
        self.w_gate, self.w_up, self.w_down = w_gate, w_up, w_down
        self.ops = ops
        weights = (w_router, w_gate, w_up, w_down)
        self.value = MoeBlock(None, *weights, num_experts_per_tok, norm_topk_prob, residual=False)

    def __call__(self, x: Float[mx.array, "*batch E"]) -> Float[mx.array, "*batch E"]:
        """Route each token, let its experts speak, add up what they say by their shares."""
        if self.held is None:
            return self.ops.moe_block(x, self.value)
        shares, experts = self.ops.route(x, self.value)
        tokens = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        # The axes say whether these are tokens of one text, or the last ones of several.
        decoded = x.shape[-2:-1] == (1,)
        said = self._said(self.held, tokens, experts.flatten(), decoded=decoded)
        said = said.reshape(*experts.shape, x.shape[-1])
        total = (said.astype(mx.float32) * shares[..., None]).sum(-2)  # *batch K E to *batch E
        return total.astype(x.dtype)

    def block(self, norm: RMSNorm, *, residual: bool = True) -> MoeBlock | None:
        """As `MLP.block`; None where others hold some of the experts."""
        if self.held is not None:
            return None
        return replace(self.value, norm=Norm(norm.weight, norm.eps), residual=residual)

    def _said(
        self,
        held: range,
        tokens: Float[mx.array, "N E"],
        chosen: Integer[mx.array, "R"],
        *,
        decoded: bool,
    ) -> Float[mx.array, "R E"]:
        """What each chosen expert says of its token, R = N*K; zeros of experts not held."""
        per_token = self.value.num_experts_per_tok
        number = chosen.astype(mx.int32) - held.start
        own = (number >= 0) & (number < len(held))
        if decoded:
            # Nothing waits for the router: the choices of others are rows of zeros, which go to an
            # expert that is read anyway.
            number = mx.where(own, number, mx.where(own, number, 0).max())
            order = mx.argsort(number)
            rows = mx.where(own[order, None], tokens[order // per_token], 0)
            said = self.ops.expert_mlp(rows, number[order], self.value, decoded=True)
            return said[mx.argsort(order)]
        # A prompt has too many rows to compute those of others: it waits to know which they are.
        order = mx.argsort(number)
        first, last = int((number < 0).sum()), int((number < len(held)).sum())
        here = order[first:last]
        rows = tokens[here // per_token]
        said = self.ops.expert_mlp(rows, number[here], self.value, decoded=False)
        return mx.pad(said, [(first, chosen.size - last), (0, 0)])[mx.argsort(order)]
