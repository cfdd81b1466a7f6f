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

    A layer may hold some of the experts: it gives their part of the sum, and the parts of all who
    share the experts add up to the whole (Lepikhin et al. 2020, expert parallelism).

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
        self.num_experts_per_tok = num_experts_per_tok
        self.norm_topk_prob = norm_topk_prob
        self.w_router = w_router
        self.w_gate, self.w_up, self.w_down = w_gate, w_up, w_down
        self.ops = ops

    def __call__(self, x: Float[mx.array, "*batch E"]) -> Float[mx.array, "*batch E"]:
        """Route each token, let its experts speak, add up what they say by their shares."""
        shares, experts = self.route(x)
        tokens = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        # The axes say whether these are tokens of one text, or the last ones of several.
        said = self._said(tokens, experts.flatten(), decoded=x.shape[-2:-1] == (1,))
        said = said.reshape(*experts.shape, x.shape[-1])
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

    def _said(
        self, tokens: Float[mx.array, "N E"], chosen: Integer[mx.array, "R"], *, decoded: bool
    ) -> Float[mx.array, "R E"]:
        """What each chosen expert says of its token, R = N*K; zeros of experts not held."""
        if self.held is not None:
            return self._said_here(self.held, tokens, chosen, decoded=decoded)
        # Rows of one expert side by side, so that its matrices are read once for all of them.
        order = mx.argsort(chosen)
        rows = tokens[order // self.num_experts_per_tok]
        return self._rows(rows, chosen[order], decoded=decoded)[mx.argsort(order)]

    def _said_here(
        self,
        held: range,
        tokens: Float[mx.array, "N E"],
        chosen: Integer[mx.array, "R"],
        *,
        decoded: bool,
    ) -> Float[mx.array, "R E"]:
        """The same where others hold some of the experts."""
        number = chosen.astype(mx.int32) - held.start
        own = (number >= 0) & (number < len(held))
        if decoded:
            # Nothing waits for the router: the choices of others are rows of zeros, which go to an
            # expert that is read anyway.
            number = mx.where(own, number, mx.where(own, number, 0).max())
            order = mx.argsort(number)
            rows = mx.where(own[order, None], tokens[order // self.num_experts_per_tok], 0)
            return self._rows(rows, number[order], decoded=True)[mx.argsort(order)]
        # A prompt has too many rows to compute those of others: it waits to know which they are.
        order = mx.argsort(number)
        first, last = int((number < 0).sum()), int((number < len(held)).sum())
        here = order[first:last]
        said = self._rows(tokens[here // self.num_experts_per_tok], number[here], decoded=False)
        return mx.pad(said, [(first, chosen.size - last), (0, 0)])[mx.argsort(order)]

    def _rows(
        self, x: Float[mx.array, "R E"], experts: Integer[mx.array, "R"], *, decoded: bool
    ) -> Float[mx.array, "R E"]:
        """`_mlp` of rows, with the axes that tell what they are."""
        lead = (experts.size, 1) if decoded else (1, experts.size)
        return self._mlp(x.reshape(*lead, x.shape[-1]), experts.reshape(lead)).reshape(x.shape)

    def _mlp(
        self, x: Float[mx.array, "*rows E"], experts: Integer[mx.array, "*rows"]
    ) -> Float[mx.array, "*rows E"]:
        """`MLP` with the matrices of each row's own expert."""
        ops = self.ops
        gate = ops.expert_linear(x, self.w_gate, experts)
        up = ops.expert_linear(x, self.w_up, experts)
        return ops.expert_linear(ops.swiglu(gate, up), self.w_down, experts)
