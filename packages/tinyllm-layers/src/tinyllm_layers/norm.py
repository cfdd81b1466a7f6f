"""RMSNorm with its weight."""

from dataclasses import KW_ONLY, dataclass

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import REFERENCE, OpSet
from tinyllm_ops.checks import require_shape


@dataclass(frozen=True, eq=False)
class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich 2019).

    Attributes:
        dim: D.
        weight: one factor for each feature, `D`.
        eps: the number that is added to the mean, against division by zero.
        ops: the implementation of the maths.

    Raises:
        ValueError: if the weight is not a vector of `dim` numbers.
    """

    dim: int
    weight: Float[mx.array, "D"]
    eps: float = 1e-5
    _: KW_ONLY
    ops: OpSet = REFERENCE

    def __post_init__(self) -> None:
        """Check the weight."""
        require_shape("weight", self.weight, (self.dim,))

    def __call__(self, x: Float[mx.array, "*batch D"]) -> Float[mx.array, "*batch D"]:
        """Normalize each vector of the last axis."""
        return self.ops.rms_norm(x, self.weight, self.eps)
