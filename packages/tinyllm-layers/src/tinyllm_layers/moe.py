"""The feed-forward half of a layer as a mixture of experts."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import mlx.core as mx
from jaxtyping import Float, Float32, Integer
from tinyllm_ops import REFERENCE, OpSet, Phase, QuantizedTensor, Weight, phase_of
from tinyllm_ops.checks import require_shape

from tinyllm_layers.communicator import SINGLE, Communicator


@dataclass(frozen=True, eq=False)
class MoE:
    """Mixture of experts (Shazeer et al. 2017): the sum of p_k mlp_k(x) over the best K of X.

    Each expert is a SwiGLU MLP. Several processes may share the layer: each holds some experts
    and computes their terms of the sum (Lepikhin et al. 2020, expert parallelism).

    Attributes:
        dim: E.
        hidden_dim: F, the hidden width of one expert.
        num_experts: X.
        num_experts_per_tok: K.
        w_router: the router, with a row for each of all experts, `X E`.
        w_gate: the gate projections of the held experts, `X F E`.
        w_up: like w_gate.
        w_down: `X E F`.
        norm_topk_prob: True to divide the weights of the chosen experts by their sum.
        held: the experts that this process holds; None for all.
        communicator: the processes that share the layer.
        ops: the implementation of the maths.

    Raises:
        ValueError: if K is not in 1..X, or a weight has another shape.
    """

    dim: int
    hidden_dim: int
    num_experts: int
    num_experts_per_tok: int
    w_router: Weight
    w_gate: Weight
    w_up: Weight
    w_down: Weight
    _: KW_ONLY
    norm_topk_prob: bool = True
    held: range | None = None
    communicator: Communicator = SINGLE
    ops: OpSet = REFERENCE

    def __post_init__(self) -> None:
        """Check the weights."""
        if not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok: expected 1 to {self.num_experts}, "
                f"got {self.num_experts_per_tok}"
            )
        count = self.num_experts if self.held is None else len(self.held)
        require_shape("w_router", self.w_router, (self.num_experts, self.dim))
        require_shape("w_gate", self.w_gate, (count, self.hidden_dim, self.dim))
        require_shape("w_up", self.w_up, (count, self.hidden_dim, self.dim))
        require_shape("w_down", self.w_down, (count, self.dim, self.hidden_dim))

    def __call__(
        self,
        x: Float[mx.array, "*batch E"],
        *,
        residual: Float[mx.array, "*batch E"] | None = None,
        phase: Phase | None = None,
    ) -> Float[mx.array, "*batch E"]:
        """Route each token, compute its experts, and sum their outputs by the routing weights.

        Args:
            x: the input, normalized.
            residual: an array that is added to the result.
            phase: as in `tinyllm_ops.linear`.
        """
        routing_weights, experts = self.route(x, phase=phase)
        rows = x.reshape(-1, x.shape[-1])
        expert_out = self._experts(rows, experts.flatten(), phase or phase_of(x, few=1))
        expert_out = expert_out.reshape(*experts.shape, x.shape[-1]).astype(mx.float32)
        y = (expert_out * routing_weights[..., None]).sum(-2).astype(x.dtype)
        own = residual if self.communicator.rank == 0 else None
        return self.communicator.all_reduce(y if own is None else own + y)

    def route(
        self, x: Float[mx.array, "*batch E"], *, phase: Phase | None = None
    ) -> tuple[Float32[mx.array, "*batch K"], Integer[mx.array, "*batch K"]]:
        """Choose K experts for each token.

        Args:
            x: the input, normalized.
            phase: as in `tinyllm_ops.linear`.

        Returns:
            The routing weights, largest first, and the experts. The router scores all X experts in
            float32, and softmax turns scores into weights. Of equal weights the expert with the
            lower number comes first.
        """
        w = self.w_router
        wide = w if isinstance(w, QuantizedTensor) else w.astype(mx.float32)
        scores = self.ops.linear(x.astype(mx.float32), wide, phase=phase)  # *batch X
        weights = self.ops.softmax(scores)
        experts = mx.argsort(-weights, axis=-1)[..., : self.num_experts_per_tok]
        weights = mx.take_along_axis(weights, experts, axis=-1)
        if self.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdims=True)
        return weights, experts

    def _experts(
        self, rows: Float[mx.array, "N E"], chosen: Integer[mx.array, "NK"], phase: Phase
    ) -> Float[mx.array, "NK E"]:
        """Compute the output of the expert of each choice; zeros for experts that are not held."""
        k = self.num_experts_per_tok
        if self.held is None:
            order = mx.argsort(chosen)  # rows of one expert side by side: read its matrices once
            return self._mlp(rows[order // k], chosen[order], phase)[mx.argsort(order)]
        number = chosen.astype(mx.int32) - self.held.start
        own = (number >= 0) & (number < len(self.held))
        if phase == "decode" and chosen.size:
            # Nothing waits for the router: choices of other processes become rows of zeros, for an
            # expert that is read anyway.
            number = mx.where(own, number, mx.where(own, number, 0).max())
            order = mx.argsort(number)
            inputs = mx.where(own[order, None], rows[order // k], 0)
            return self._mlp(inputs, number[order], phase)[mx.argsort(order)]
        # A prompt has too many rows to compute the rows of other processes: wait for the router.
        order = mx.argsort(number)
        first, stop = int((number < 0).sum()), int((number < len(self.held)).sum())
        here = order[first:stop]
        out = self._mlp(rows[here // k], number[here], phase)
        return mx.pad(out, [(first, chosen.size - stop), (0, 0)])[mx.argsort(order)]

    def _mlp(
        self, x: Float[mx.array, "R E"], experts: Integer[mx.array, "R"], phase: Phase
    ) -> Float[mx.array, "R E"]:
        """Apply a SwiGLU MLP with the matrices of each row's expert; `experts` must ascend."""
        ops = self.ops
        gate = ops.expert_linear(x, self.w_gate, experts, phase=phase)
        up = ops.expert_linear(x, self.w_up, experts, phase=phase)
        return ops.expert_linear(ops.swiglu(gate, up), self.w_down, experts, phase=phase)
