"""What a normalization needs beside the numbers that it normalizes."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float


@dataclass(frozen=True)
class Norm:
    """The weight and the eps of an RMSNorm.

    Attributes:
        weight: one factor for each feature.
        eps: added to the mean of the squares.
    """

    weight: Float[mx.array, "D"]
    eps: float
