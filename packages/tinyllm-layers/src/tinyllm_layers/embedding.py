"""The table of token vectors, also as the head of a model that ties them."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_ops import REFERENCE, OpSet, Weight
from tinyllm_ops.contract import require_shape


class Embedding:
    """One vector of `embedding_dim` numbers for each of `vocab_size` tokens.

    Raises:
        ValueError: if the weight has another shape than `V E`.
    """

    def __init__(
        self, vocab_size: int, embedding_dim: int, weight: Weight, *, ops: OpSet = REFERENCE
    ) -> None:
        """Hold the table."""
        require_shape("weight", weight, (vocab_size, embedding_dim))
        self.weight = weight
        self.ops = ops

    def __call__(self, ids: Integer[mx.array, "*batch"]) -> Float[mx.array, "*batch E"]:
        """Look the vectors up."""
        return self.ops.embedding(ids, self.weight)

    def as_linear(self, h: Float[mx.array, "*batch E"]) -> Float[mx.array, "*batch V"]:
        """Score each token held by its vector's product with h: the head of a tied model."""
        return self.ops.linear(h, self.weight)
