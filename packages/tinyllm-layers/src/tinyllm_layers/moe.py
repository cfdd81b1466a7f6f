"""A feed-forward half of many experts, of which each token uses a few."""

from __future__ import annotations

import math

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_ops import REFERENCE, OpSet, Weight
from tinyllm_ops.contract import require_shape
from tinyllm_ops.quantized_tensor import QuantizedTensor


class MoE:
    """Mixture of experts (Shazeer et al. 2017): the sum of p_k mlp_k(x) over the best K of X.

    The router scores all X experts in float32, and softmax makes shares of the scores; the K
    largest are kept, and divided by their sum if `norm_topk_prob`. Each expert is an `MLP`.

    Raises:
        ValueError: if K is not in 1..X, or a weight has another shape than `X E` (router),
            `X F E` (gate, up) or `X E F` (down).
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
        ops: OpSet = REFERENCE,
    ) -> None:
        """Hold the router and the experts' projections between `dim` (E) and `hidden_dim` (F)."""
        if not 1 <= num_experts_per_tok <= num_experts:
            raise ValueError(
                f"num_experts_per_tok: expected 1 to {num_experts}, got {num_experts_per_tok}"
            )
        require_shape("w_router", w_router, (num_experts, dim))
        require_shape("w_gate", w_gate, (num_experts, hidden_dim, dim))
        require_shape("w_up", w_up, (num_experts, hidden_dim, dim))
        require_shape("w_down", w_down, (num_experts, dim, hidden_dim))
        self.num_experts_per_tok = num_experts_per_tok
        self.norm_topk_prob = norm_topk_prob
        self.w_router = w_router
        self.w_gate, self.w_up, self.w_down = w_gate, w_up, w_down
        self.ops = ops

    def __call__(self, x: Float[mx.array, "*batch E"]) -> Float[mx.array, "*batch E"]:
        """Route each token, let its experts speak, add up what they say by their shares."""
        shares, experts = self.route(x)
        # Rows of one expert side by side, so that its matrices are read once for all of them.
        chosen = experts.flatten()  # R = N*K
        order = mx.argsort(chosen)
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])[order // self.num_experts_per_tok]
        # The axes still say whether these are tokens of one text, or the last ones of several.
        lead = (chosen.size, 1) if x.shape[-2:-1] == (1,) else (1, chosen.size)
        said = self._mlp(rows.reshape(*lead, x.shape[-1]), chosen[order].reshape(lead))
        said = said.reshape(rows.shape)[mx.argsort(order)].reshape(*experts.shape, x.shape[-1])
        total = (said.astype(mx.float32) * shares[..., None]).sum(-2)  # *batch K E to *batch E
        return total.astype(x.dtype)

    def route(
        self, x: Float[mx.array, "*batch E"]
    ) -> tuple[Float[mx.array, "*batch K"], Integer[mx.array, "*batch K"]]:
        """Choose K experts a token: their shares, float32 and largest first, and their numbers."""
        w = self.w_router
        wide = w if isinstance(w, QuantizedTensor) else w.astype(mx.float32)
        shares = self.ops.softmax(self.ops.linear(x.astype(mx.float32), wide))  # *batch X
        experts = mx.argsort(-shares, axis=-1)[..., : self.num_experts_per_tok]
        shares = mx.take_along_axis(shares, experts, axis=-1)
        if self.norm_topk_prob:
            shares = shares / shares.sum(-1, keepdims=True)
        return shares, experts

    def _mlp(
        self, x: Float[mx.array, "*rows E"], experts: Integer[mx.array, "*rows"]
    ) -> Float[mx.array, "*rows E"]:
        """`MLP` with the matrices of each row's own expert."""
        ops = self.ops
        gate = ops.expert_linear(x, self.w_gate, experts)
        up = ops.expert_linear(x, self.w_up, experts)
        return ops.expert_linear(ops.swiglu(gate, up), self.w_down, experts)
