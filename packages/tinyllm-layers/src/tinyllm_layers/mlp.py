"""The feed-forward half of a block."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import REFERENCE, MlpBlock, Norm, OpSet, Weight
from tinyllm_ops.contract import require_shape

from tinyllm_layers.rms_norm import RMSNorm


class MLP:
    """w_down(silu(w_gate x) * (w_up x)), without biases (Shazeer 2020, SwiGLU).

    Raises:
        ValueError: if a weight has another shape than `F E` (gate, up) or `E F` (down).
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        w_gate: Weight,
        w_up: Weight,
        w_down: Weight,
        *,
        ops: OpSet = REFERENCE,
    ) -> None:
        """Hold the three projections between `dim` (E) and `hidden_dim` (F)."""
        require_shape("w_gate", w_gate, (hidden_dim, dim))
        require_shape("w_up", w_up, (hidden_dim, dim))
        require_shape("w_down", w_down, (dim, hidden_dim))
        self.w_gate = w_gate
        self.w_up = w_up
        self.w_down = w_down
        self.ops = ops

    def __call__(self, x: Float[mx.array, "*batch E"]) -> Float[mx.array, "*batch E"]:
        """Widen, gate, narrow."""
        ops = self.ops
        gated = ops.swiglu(ops.linear(x, self.w_gate), ops.linear(x, self.w_up))
        return ops.linear(gated, self.w_down)

    def block(self, norm: RMSNorm, *, residual: bool = True) -> MlpBlock:
        """These weights as a value for the coarse ops, with the norm before them.

        Args:
            norm: the norm.
            residual: whether the ops add what they are given to what they make of it.
        """
        normal = Norm(norm.weight, norm.eps)
        return MlpBlock(normal, self.w_gate, self.w_up, self.w_down, residual)
