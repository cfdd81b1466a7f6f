"""The tokens to draw from, and the filters that reduce them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float, Int, Integer, UInt32
from tinyllm_ops import REFERENCE, OpSet

_SMALLEST_P = 1e-30
"""The least top-p. It keeps only the best token; a smaller p is 0 in float32 and keeps none."""

PerRow = float | Sequence[float]
"""A setting: one number for all rows, or one number a row of `R N`."""


@dataclass(frozen=True)
class Candidates:
    """N tokens and their scores, in any order; logits until `tempered` divides them.

    Each filter returns new candidates: fewer of them, or some with the score -inf, which is never
    drawn. Every filter keeps a best token, and none reads a value back from the device. A filter
    that needs the ranking sorts the candidates that it is given, so that top-k first makes top-p
    cheap: a full sort of Qwen's 151,936 scores takes longer on a CPU than a small model's token.

    Rows are filtered and drawn from independently: each gets the bits that it gets alone.

    Attributes:
        tokens: the ids; None if they are 0 to N - 1.
        scores: their scores.
    """

    tokens: Int[mx.array, "*batch N"] | None
    scores: Float[mx.array, "*batch N"]

    def top_k(self, k: int, ops: OpSet = REFERENCE) -> "Candidates":
        """Keep the k best candidates; all if k exceeds their number.

        Among scores that tie for the last place the OpSet chooses, so that exactly k remain.
        (vLLM keeps every token of the tie.)
        """
        if k >= self.scores.shape[-1]:
            return self
        scores, places = ops.top_k(self.scores, k)
        return Candidates(self._tokens_at(places), scores)

    def tempered(self, temperature: PerRow) -> "Candidates":
        """Divide the scores, in float32: exp(s / t) is flatter than exp(s) where t is above 1."""
        return Candidates(self.tokens, self.scores.astype(mx.float32) / _column(temperature))

    def min_p(self, p: PerRow) -> "Candidates":
        """Keep the tokens at least p times as likely as the best one (arXiv:2407.01082).

        exp(s) >= p exp(max s) is compared as s >= max s + log p: no softmax is needed.
        """
        if not any(_numbers(p)):
            return self
        logs = [math.log(number) if number else -math.inf for number in _numbers(p)]
        least = self.scores.max(axis=-1, keepdims=True) + _column(logs if _is_row(p) else logs[0])
        return Candidates(self.tokens, mx.where(self.scores >= least, self.scores, -math.inf))

    def top_p(self, p: PerRow) -> "Candidates":
        """Keep the smallest set of best tokens whose probability reaches p (arXiv:1904.09751).

        A token stays if the tokens ranked above it hold less than p: the token that crosses p is
        kept, and so is the best one, however small p is. The result is ranked, best last. All
        rows are left as they are if p is 1 in all of them.
        """
        if all(number == 1 for number in _numbers(p)):
            return self
        ranking = mx.argsort(self.scores, axis=-1)
        scores = mx.take_along_axis(self.scores, ranking, axis=-1)
        # Summed from the smallest up: downward, a float32 sum near 1 swallows the small terms of
        # a large vocabulary and is off by 6e-4 at V = 151,936; upward, by 3e-7.
        mass = mx.cumsum(mx.exp(scores - scores.max(axis=-1, keepdims=True)), axis=-1)
        mass_above = (mass[..., -1:] - mass) / mass[..., -1:]
        most = [max(number, _SMALLEST_P) for number in _numbers(p)]
        keep = mass_above < _column(most if _is_row(p) else most[0])
        return Candidates(self._tokens_at(ranking), mx.where(keep, scores, -math.inf))

    def draw(self, keys: UInt32[mx.array, "*batch 2"]) -> Int[mx.array, "*batch"]:
        """Draw one token of each row with probability softmax(scores), from the row's own key."""
        if self.scores.ndim == 1:
            place = mx.random.categorical(self.scores, key=keys)
        else:
            place = _categorical(self.scores, keys)
        return self._tokens_at(place[..., None])[..., 0]

    def _tokens_at(self, places: Integer[mx.array, "*batch K"]) -> Int[mx.array, "*batch K"]:
        if self.tokens is None:
            return places.astype(mx.int32)
        return mx.take_along_axis(self.tokens, places, axis=-1)


@mx.vmap
def _categorical(scores: mx.array, key: mx.array) -> mx.array:
    """Draw an index from each row `N`, with the random numbers of the row's own key."""
    return mx.random.categorical(scores, key=key)


def _is_row(setting: PerRow) -> bool:
    return isinstance(setting, Sequence)


def _numbers(setting: PerRow) -> Sequence[float]:
    return setting if isinstance(setting, Sequence) else (setting,)


def _column(setting: PerRow) -> float | Float[mx.array, "R 1"]:
    """Return the setting in a form that broadcasts over the candidates of a row."""
    if isinstance(setting, Sequence):
        return mx.array(list(setting), dtype=mx.float32)[:, None]
    return setting
