"""The likeliest tokens of a model, without the scores of all other tokens."""

from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float, Float32, Int32
from tinyllm_layers import Communicator
from tinyllm_ops import OpSet


@dataclass(frozen=True)
class BestTokens:
    """N tokens with their scores, the best tokens of the vocabulary among them.

    Attributes:
        tokens: ids; the best tokens of each rank in order, by rank.
        scores: their logits.
        log_total: log sum exp of the scores of the whole vocabulary, to normalize them.
    """

    tokens: Int32[mx.array, "*batch N"]
    scores: Float32[mx.array, "*batch N"]
    log_total: Float32[mx.array, "*batch"]

    @classmethod
    def of(
        cls, scores: Float[mx.array, "*batch V"], k: int, first: int, ops: OpSet
    ) -> "BestTokens":
        """Find the k best tokens of the part of the vocabulary that begins with id `first`.

        Among tokens that tie for the best place the first token is taken.
        """
        if k == 1:  # of equal scores `argmax` takes the first, `top_k` any
            found = ops.argmax(scores)[..., None]
            best = mx.take_along_axis(scores, found, axis=-1)
        else:
            best, found = ops.top_k(scores, k)
        best = best.astype(mx.float32)
        log_total = best[..., 0] - ops.log_probability(scores, found[..., :1])[..., 0]
        return cls(found + first, best, log_total)

    def at(self, *place: int | slice | mx.array) -> "BestTokens":
        """Return the best tokens of one position, or of several."""
        return BestTokens(self.tokens[place], self.scores[place], self.log_total[place])

    def packed(self) -> Float32[mx.array, "*batch packed"]:
        """Return all fields as one array, for one message instead of three; ids by their bits."""
        tokens = self.tokens.view(mx.float32)
        return mx.concatenate([self.scores, tokens, self.log_total[..., None]], axis=-1)

    def gathered(self, communicator: Communicator) -> "BestTokens":
        """Gather the best tokens of all processes, each of which has a part of the vocabulary."""
        if communicator.size == 1:
            return self
        packed = communicator.all_gather(self.packed())
        k = packed.shape[-1] // 2

        def side_by_side(parts: Float32[mx.array, "ranks *batch k"]) -> mx.array:
            return mx.moveaxis(parts, 0, -2).flatten(-2)  # *batch ranks*k

        return BestTokens(
            side_by_side(packed[..., k : 2 * k]).view(mx.int32),
            side_by_side(packed[..., :k]),
            mx.logsumexp(packed[..., -1], axis=0),
        )


def check_num_best(k: int, vocab_size: int) -> None:
    """Raise ValueError unless k is a number of tokens of the vocabulary."""
    if not 1 <= k <= vocab_size:
        raise ValueError(f"k: expected 1 to {vocab_size}, got {k}")
