"""The most likely tokens with their scores, gathered from processes that share a vocabulary."""

from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float, Float32, Int32
from tinyllm_layers import Communicator
from tinyllm_ops import OpSet


@dataclass(frozen=True)
class BestTokens:
    """N tokens with their scores, which include the k best tokens of the vocabulary.

    Attributes:
        tokens: the ids: the k best tokens of rank 0, then the k best tokens of rank 1, and so on.
        scores: the logits of these tokens.
        log_total: log sum exp of the logits of the whole vocabulary, to normalize the scores.
    """

    tokens: Int32[mx.array, "*batch N"]
    scores: Float32[mx.array, "*batch N"]
    log_total: Float32[mx.array, "*batch"]

    @classmethod
    def of(
        cls, scores: Float[mx.array, "*batch V"], k: int, first: int, ops: OpSet
    ) -> "BestTokens":
        """Find the k best tokens of a process.

        If k is 1 and several tokens have the best score, the token with the lowest id is taken.

        Args:
            scores: the logits of the tokens of this process.
            k: the number of tokens.
            first: the id of the first token of this process.
            ops: the implementation of argmax, top-k and log-probability.
        """
        if k == 1:  # of equal scores `argmax` takes the first, but `top_k` any
            found = ops.argmax(scores)[..., None]
            best = mx.take_along_axis(scores, found, axis=-1)
        else:
            best, found = ops.top_k(scores, k)
        best = best.astype(mx.float32)
        log_total = best[..., 0] - ops.log_probability(scores, found[..., :1])[..., 0]
        return cls(found + first, best, log_total)

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays of all fields."""
        return [self.tokens, self.scores, self.log_total]

    def __getitem__(self, index: int | mx.array | None) -> "BestTokens":
        """Return the best tokens at an index of the axes `*batch`, as of an array."""
        return BestTokens(self.tokens[index], self.scores[index], self.log_total[index])

    def packed(self) -> Float32[mx.array, "*batch packed"]:
        """Return all fields as one array, for one all-gather instead of three.

        Ids are reinterpreted as float32, bit by bit.
        """
        tokens = self.tokens.view(mx.float32)
        return mx.concatenate([self.scores, tokens, self.log_total[..., None]], axis=-1)

    def gathered(self, communicator: Communicator) -> "BestTokens":
        """Return the best tokens of all processes, of which each has a part of the vocabulary."""
        if communicator.size == 1:
            return self
        packed = communicator.all_gather(self.packed())
        k = packed.shape[-1] // 2  # of the 2 k + 1 numbers

        def side_by_side(parts: Float32[mx.array, "ranks *batch k"]) -> mx.array:
            return mx.moveaxis(parts, 0, -2).flatten(-2)  # *batch ranks*k

        return BestTokens(
            side_by_side(packed[..., k : 2 * k]).view(mx.int32),
            side_by_side(packed[..., :k]),
            mx.logsumexp(packed[..., -1], axis=0),
        )


def check_num_best(k: int, vocab_size: int) -> None:
    """Raise ValueError unless k is in 1..V."""
    if not 1 <= k <= vocab_size:
        raise ValueError(f"k: expected 1 to {vocab_size}, got {k}")
