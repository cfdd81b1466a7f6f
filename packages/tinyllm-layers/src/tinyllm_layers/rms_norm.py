"""RMSNorm with its weight."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import REFERENCE, OpSet
from tinyllm_ops.contract import require_shape


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis.

    Raises:
        ValueError: if the weight is not a vector of `dim` numbers.
    """

    def __init__(
        self, dim: int, weight: Float[mx.array, "D"], eps: float = 1e-5, *, ops: OpSet = REFERENCE
    ) -> None:
        """Hold `weight`, one factor for each of `dim` features."""
        require_shape("weight", weight, (dim,))
        self.weight = weight
        self.eps = eps
        self.ops = ops

    def __call__(self, x: Float[mx.array, "*batch D"]) -> Float[mx.array, "*batch D"]:
        """Normalize each vector of the last axis."""
        return self.ops.rms_norm(x, self.weight, self.eps)
