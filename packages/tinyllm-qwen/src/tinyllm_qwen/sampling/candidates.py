"""The tokens that are still in play, and the three filters that thin them out."""

import math
from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float, Int
from tinyllm_ops import REFERENCE, OpSet

_SMALLEST_P = 1e-30
"""Already keeps the best token alone; a smaller p would be 0 in float32 and keep none."""


@dataclass(frozen=True)
class Candidates:
    """N tokens and their scores, in any order; logits until `tempered` divides them.

    Each filter gives new candidates: fewer of them, or some with the score -inf, which is never
    drawn. All keep a best token, and none reads a value back from the device. A filter that
    needs the ranking sorts the candidates that it was given, so that top-k first makes top-p
    cheap: a full sort of Qwen's 151,936 scores takes longer on a CPU than a small model's token.
    """

    tokens: Int[mx.array, "N"]
    scores: Float[mx.array, "N"]

    def top_k(self, k: int, ops: OpSet = REFERENCE) -> "Candidates":
        """Keep the k best; all of them where k exceeds their number.

        Among scores that tie for the last place it is the OpSet that picks, so that exactly k
        remain. (vLLM keeps every token of the tie.)
        """
        if k >= self.tokens.size:
            return self
        scores, best = ops.top_k(self.scores, k)
        return Candidates(self.tokens[best], scores)

    def tempered(self, temperature: float) -> "Candidates":
        """Divide the scores, in float32: exp(s / t) is flatter than exp(s) where t is above 1."""
        return Candidates(self.tokens, self.scores.astype(mx.float32) / temperature)

    def min_p(self, p: float) -> "Candidates":
        """Keep the tokens at least p times as likely as the best one (arXiv:2407.01082).

        exp(s) >= p exp(max s) is compared as s >= max s + log p: no softmax is needed.
        """
        if p == 0:
            return self
        keep = self.scores >= self.scores.max() + math.log(p)
        return Candidates(self.tokens, mx.where(keep, self.scores, -math.inf))

    def top_p(self, p: float) -> "Candidates":
        """Keep the smallest set of best tokens whose probability reaches p (arXiv:1904.09751).

        A token stays if those ranked above it hold less than p: the one that crosses p is kept,
        and so is the best, however small p is. The result is ranked, best last.
        """
        if p == 1:
            return self
        ranking = mx.argsort(self.scores)
        scores = self.scores[ranking]
        # Summed from the smallest up: downward, a float32 sum near 1 swallows the small terms of
        # a large vocabulary and is off by 6e-4 at V = 151,936; upward, by 3e-7.
        mass = mx.cumsum(mx.exp(scores - scores.max()))
        mass_above = (mass[-1] - mass) / mass[-1]
        keep = mass_above < max(p, _SMALLEST_P)
        return Candidates(self.tokens[ranking], mx.where(keep, scores, -math.inf))

    def draw(self, key: mx.array) -> Int[mx.array, ""]:
        """Draw one token with probability softmax(scores)."""
        return self.tokens[mx.random.categorical(self.scores, key=key)]
