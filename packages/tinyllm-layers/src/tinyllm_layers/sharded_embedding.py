"""The table of token vectors, of which each process has some rows."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_ops import REFERENCE, OpSet, Weight

from tinyllm_layers.embedding import Embedding
from tinyllm_layers.ranks import Ranks


class ShardedEmbedding(Embedding):
    """The rows of the tokens `held`; the others' vectors come from other processes.

    Raises:
        ValueError: if the weight has another shape than `held E`.
    """

    def __init__(
        self,
        held: range,
        embedding_dim: int,
        weight: Weight,
        ranks: Ranks,
        *,
        ops: OpSet = REFERENCE,
    ) -> None:
        """Hold the rows of some tokens.

        Args:
            held: which tokens these are.
            embedding_dim: E.
            weight: their rows.
            ranks: who has the others.
            ops: the implementation of the maths.
        """
        super().__init__(len(held), embedding_dim, weight, ops=ops)
        self.held = held
        self.ranks = ranks

    def __call__(self, ids: Integer[mx.array, "*batch"]) -> Float[mx.array, "*batch E"]:
        """Look the vectors up: zeros for what others hold, then the sum of all."""
        own = (ids >= self.held.start) & (ids < self.held.stop)
        rows = super().__call__(mx.where(own, ids - self.held.start, 0))
        return self.ranks.sum(mx.where(own[..., None], rows, 0).astype(rows.dtype))
