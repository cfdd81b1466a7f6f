"""The feed-forward half of a decoder layer."""

from dataclasses import KW_ONLY, dataclass

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import REFERENCE, OpSet, Phase, Weight
from tinyllm_ops.checks import require_shape

from tinyllm_layers.communicator import SINGLE, Communicator


@dataclass(frozen=True, eq=False)
class MLP:
    """w_down(silu(w_gate x) * (w_up x)), without biases (Shazeer 2020, SwiGLU).

    Attributes:
        dim: E.
        hidden_dim: F, the number of hidden features in this process.
        w_gate: the gate projection, `F E`.
        w_up: the up projection, `F E`.
        w_down: the down projection, `E F`.
        communicator: the processes that share the layer. Each computes some hidden features.
        ops: the implementation of the maths.

    Raises:
        ValueError: if a weight does not have the shape above.
    """

    dim: int
    hidden_dim: int
    w_gate: Weight
    w_up: Weight
    w_down: Weight
    _: KW_ONLY
    communicator: Communicator = SINGLE
    ops: OpSet = REFERENCE

    def __post_init__(self) -> None:
        """Check the weights."""
        require_shape("w_gate", self.w_gate, (self.hidden_dim, self.dim))
        require_shape("w_up", self.w_up, (self.hidden_dim, self.dim))
        require_shape("w_down", self.w_down, (self.dim, self.hidden_dim))

    def __call__(
        self,
        x: Float[mx.array, "*batch E"],
        *,
        residual: Float[mx.array, "*batch E"] | None = None,
        phase: Phase | None = None,
    ) -> Float[mx.array, "*batch E"]:
        """Apply the MLP to each token.

        Args:
            x: the input, normalized.
            residual: an array that is added to the result.
            phase: as in `tinyllm_ops.linear`.
        """
        ops = self.ops
        gate = ops.linear(x, self.w_gate, phase=phase)
        up = ops.linear(x, self.w_up, phase=phase)
        # Rank 0 alone adds the residual: the all-reduce would add it once for each rank.
        local_residual = residual if self.communicator.rank == 0 else None
        y = ops.linear(ops.swiglu(gate, up), self.w_down, None, local_residual, phase=phase)
        return self.communicator.all_reduce(y)
