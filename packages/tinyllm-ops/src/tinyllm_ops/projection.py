"""A matrix with what is added to its product."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float

from tinyllm_ops.contract import Weight


@dataclass(frozen=True)
class Projection:
    """y = x w^T + bias, before x is known.

    Attributes:
        weight: `O I`, dense or quantized.
        bias: `O`, or None.
    """

    weight: Weight
    bias: Float[mx.array, "O"] | None = None
