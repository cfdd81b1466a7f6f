"""The feed-forward half of a decoder layer as a mixture of experts."""

from dataclasses import KW_ONLY, dataclass

import mlx.core as mx
from jaxtyping import Float, Float32, Integer
from tinyllm_ops import REFERENCE, OpSet, Phase, QuantizedTensor, Weight, phase_of, sigmoid
from tinyllm_ops.checks import require_dtype, require_shape

from tinyllm_layers.communicator import SINGLE, Communicator
from tinyllm_layers.mlp import MLP


@dataclass(frozen=True, eq=False)
class MoE:
    """Mixture of experts: the sum of p_k mlp_k(x) over the best K of X experts (Shazeer 2017).

    Each expert is a SwiGLU MLP. p_k is the routing weight of expert k. Several processes may share
    the layer. Each process then holds some of the experts and computes their terms of the sum
    (Lepikhin et al. 2020, expert parallelism).

    A shared expert computes every token (Dai et al. 2024). Its gate scales it for each token:
    y = sum + sigmoid(shared_gate x) * shared(x).

    Attributes:
        dim: E.
        hidden_dim: F, the number of hidden features of one expert.
        num_experts: X, the number of experts in all processes.
        num_experts_per_tok: K.
        w_router: the router, `X E`, with the rows of all X experts on every process.
        w_gate: the gate projections of the experts in `local_experts`, `len(local_experts) F E`.
        w_up: the up projections, `len(local_experts) F E`.
        w_down: the down projections, `len(local_experts) E F`.
        norm_topk_prob: True to divide the routing weights of the K experts by their sum.
        local_experts: the numbers of the experts that this process holds; None for all X experts.
        shared: the shared expert, or None. Processes that share the layer hold some of its hidden
            features each. Its own communicator must be the one of a single process, because the
            all-reduce of this layer adds up the parts.
        shared_gate: the gate of the shared expert, `1 E`, or None without a shared expert.
        communicator: the processes that share the layer.
        ops: the implementation of the maths.

    Raises:
        ValueError: if K is not in 1..X, a weight does not have the shape above, or only one of
            `shared` and `shared_gate` is given.
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
    local_experts: range | None = None
    shared: MLP | None = None
    shared_gate: Weight | None = None
    communicator: Communicator = SINGLE
    ops: OpSet = REFERENCE

    def __post_init__(self) -> None:
        """Check the weights."""
        if not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok: expected 1 to {self.num_experts}, "
                f"got {self.num_experts_per_tok}"
            )
        count = self.num_experts if self.local_experts is None else len(self.local_experts)
        require_shape("w_router", self.w_router, (self.num_experts, self.dim))
        require_shape("w_gate", self.w_gate, (count, self.hidden_dim, self.dim))
        require_shape("w_up", self.w_up, (count, self.hidden_dim, self.dim))
        require_shape("w_down", self.w_down, (count, self.dim, self.hidden_dim))
        if (self.shared is None) != (self.shared_gate is None):
            missing = "shared" if self.shared is None else "shared_gate"
            raise ValueError(f"{missing}: expected both `shared` and `shared_gate`, or neither")
        if self.shared is not None and self.shared_gate is not None:
            require_shape("shared_gate", self.shared_gate, (1, self.dim))
            if self.shared.dim != self.dim or self.shared.communicator.size > 1:
                raise ValueError(
                    f"shared: expected an MLP of dim {self.dim} without a communicator of its own, "
                    f"got dim {self.shared.dim} and {self.shared.communicator.size} processes"
                )

    def __call__(
        self,
        x: Float[mx.array, "*batch E"],
        *,
        residual: Float[mx.array, "*batch E"] | None = None,
        phase: Phase | None = None,
    ) -> Float[mx.array, "*batch E"]:
        """Route each token, compute its experts, and sum their weighted outputs.

        Args:
            x: the input, normalized.
            residual: an array that is added to the result.
            phase: as in `tinyllm_ops.linear`.
        """
        if residual is not None:
            require_shape("residual", residual, x.shape)
            require_dtype("residual", residual, x.dtype)
        routing_weights, experts = self.route(x, phase=phase)
        rows = x.reshape(-1, x.shape[-1])
        expert_out = self._experts(rows, experts.flatten(), phase or phase_of(x, few=1))
        expert_out = expert_out.reshape(*experts.shape, x.shape[-1]).astype(mx.float32)
        total = (expert_out * routing_weights[..., None]).sum(-2)
        if self.shared is not None and self.shared_gate is not None:
            gate = self.ops.linear(x, self.shared_gate, phase=phase).astype(mx.float32)
            total = total + sigmoid(gate) * self.shared(x, phase=phase).astype(mx.float32)
        y = total.astype(x.dtype)
        # Rank 0 alone adds the residual: the all-reduce would add it once for each rank.
        local_residual = residual if self.communicator.rank == 0 else None
        return self.communicator.all_reduce(y if local_residual is None else local_residual + y)

    def route(
        self, x: Float[mx.array, "*batch E"], *, phase: Phase | None = None
    ) -> tuple[Float32[mx.array, "*batch K"], Integer[mx.array, "*batch K"]]:
        """Choose K experts for each token.

        Args:
            x: the input, normalized.
            phase: as in `tinyllm_ops.linear`.

        Returns:
            The routing weights, largest first, and the numbers of the experts. The router scores
            all X experts in float32, and softmax turns scores into routing weights. If routing
            weights are equal, the expert with the lower number comes first.
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
        self, rows: Float[mx.array, "N E"], chosen: Integer[mx.array, "R"], phase: Phase
    ) -> Float[mx.array, "R E"]:
        """Compute the expert outputs of all R = N K pairs of a token and one of its experts.

        Args:
            rows: the tokens.
            chosen: the expert of each pair. The K pairs of a token are consecutive.
            phase: as in `tinyllm_ops.linear`.

        Returns:
            One row for each pair; zeros for experts of other processes.
        """
        k = self.num_experts_per_tok
        local = self.local_experts
        if local is None:
            order = mx.argsort(chosen)  # sort by expert, to read the matrices of each expert once
            return self._mlp(rows[order // k], chosen[order], phase)[mx.argsort(order)]
        number = chosen.astype(mx.int32) - local.start
        is_local = (number >= 0) & (number < len(local))
        if phase == "decode" and chosen.size:
            # Do not wait for the values of the router. Pairs of other processes become rows of
            # zeros. These rows use an expert of this process that another pair needs anyway, so
            # that no additional matrices are read.
            number = mx.where(is_local, number, mx.where(is_local, number, 0).max())
            order = mx.argsort(number)
            inputs = mx.where(is_local[order, None], rows[order // k], 0)
            return self._mlp(inputs, number[order], phase)[mx.argsort(order)]
        # A prompt has too many pairs to compute rows of zeros for other processes: wait for the
        # values of the router, and compute the pairs of this process alone.
        order = mx.argsort(number)
        first, stop = int((number < 0).sum()), int((number < len(local)).sum())
        local_order = order[first:stop]
        out = self._mlp(rows[local_order // k], number[local_order], phase)
        return mx.pad(out, [(first, chosen.size - stop), (0, 0)])[mx.argsort(order)]

    def _mlp(
        self, x: Float[mx.array, "R E"], experts: Integer[mx.array, "R"], phase: Phase
    ) -> Float[mx.array, "R E"]:
        """Apply to each row the SwiGLU MLP of its expert. `experts` must ascend."""
        ops = self.ops
        gate = ops.expert_linear(x, self.w_gate, experts, phase=phase)
        up = ops.expert_linear(x, self.w_up, experts, phase=phase)
        return ops.expert_linear(ops.swiglu(gate, up), self.w_down, experts, phase=phase)
