"""The candidates for the next token, and filters that remove candidates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float, Float32, Int, Integer, UInt32
from tinyllm_ops import REFERENCE, OpSet

_SMALLEST_P = 1e-30
"""The lower limit of top-p, which keeps only the best token. A smaller p could become 0 in float32,
which would keep no token."""


@dataclass(frozen=True)
class Candidates:
    """N tokens of each of R rows and their scores, in any order.

    Scores are logits, until `tempered` divides them.

    Each filter returns new candidates: fewer candidates, or candidates of which some have the score
    -inf and are never drawn. Every filter keeps a best token. No filter waits for the device. A
    filter that needs a ranking sorts its candidates, so top-k before top-p makes top-p cheap: on a
    CPU, a sort of Qwen's 151,936 scores takes longer than one token of a small model.

    Rows are independent. The result of a row has the same bits whatever the other rows are. A
    setting of a filter has one number per row.

    Attributes:
        tokens: the ids; None for the ids 0 to N - 1.
        scores: the score of each token.
    """

    tokens: Int[mx.array, "R N"] | None
    scores: Float[mx.array, "R N"]

    def top_k(self, k: int, ops: OpSet = REFERENCE) -> "Candidates":
        """Keep the k best candidates, or all candidates if there are fewer than k.

        If several scores equal the k-th best score, `ops` decides which candidates are kept, so
        that exactly k remain. (vLLM keeps all candidates with that score.)
        """
        if k >= self.scores.shape[-1]:
            return self
        scores, indices = ops.top_k(self.scores, k)
        return Candidates(self._tokens_at(indices), scores)

    def tempered(self, temperature: Sequence[float]) -> "Candidates":
        """Divide the scores by the temperature, in float32.

        A temperature above 1 makes the distribution flatter.
        """
        return Candidates(self.tokens, self.scores.astype(mx.float32) / _column(temperature))

    def min_p(self, p: Sequence[float]) -> "Candidates":
        """Keep the tokens at least p times as likely as the best token (arXiv:2407.01082).

        The condition exp(s) >= p exp(max s) is computed as s >= max s + log p, without a softmax.
        """
        if not any(p):
            return self
        logs = [math.log(number) if number else -math.inf for number in p]
        least = self.scores.max(axis=-1, keepdims=True) + _column(logs)
        return Candidates(self.tokens, mx.where(self.scores >= least, self.scores, -math.inf))

    def top_p(self, p: Sequence[float]) -> "Candidates":
        """Keep the smallest set of best tokens whose probability reaches p (arXiv:1904.09751).

        The tokens are sorted by score, equal ones in any order. A token is kept if the sum of the
        probabilities of the tokens before it, which are at least as likely, is less than p. So the
        token at which the sum reaches p is kept, and the best token is kept for any p. The result
        is sorted by score, the best token last. If p is 1 in all rows, the candidates are returned
        unchanged.
        """
        if all(number == 1 for number in p):
            return self
        ranking = mx.argsort(self.scores, axis=-1)
        scores = mx.take_along_axis(self.scores, ranking, axis=-1)
        # Sum from the smallest term up. A float32 sum that starts with the largest term loses the
        # small terms of a large vocabulary: at V = 151,936 its error is 6e-4 instead of 3e-7.
        mass = mx.cumsum(mx.exp(scores - scores.max(axis=-1, keepdims=True)), axis=-1)
        mass_above = (mass[..., -1:] - mass) / mass[..., -1:]
        keep = mass_above < _column([max(number, _SMALLEST_P) for number in p])
        # Sums with an infinite or missing score are NaN, of which a comparison is false.
        keep[..., -1] = True
        return Candidates(self._tokens_at(ranking), mx.where(keep, scores, -math.inf))

    def draw(self, keys: UInt32[mx.array, "R 2"]) -> Int[mx.array, "R"]:
        """Draw one token of each row with probability softmax(scores), with the key of the row."""
        return self._tokens_at(_categorical(self.scores, keys)[:, None])[:, 0]

    def _tokens_at(self, indices: Integer[mx.array, "R K"]) -> Int[mx.array, "R K"]:
        if self.tokens is None:
            return indices.astype(mx.int32)
        return mx.take_along_axis(self.tokens, indices, axis=-1)


@mx.vmap
def _categorical(scores: mx.array, key: mx.array) -> mx.array:
    """Draw an index from the N scores of a row, with the key of the row."""
    return mx.random.categorical(scores, key=key)


def _column(setting: Sequence[float]) -> Float32[mx.array, "R 1"]:
    """Return the setting in a shape that broadcasts over the candidates of each row."""
    return mx.array(list(setting), dtype=mx.float32)[:, None]
