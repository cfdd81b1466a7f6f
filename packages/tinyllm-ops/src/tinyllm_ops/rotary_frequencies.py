"""Rotary frequencies of the pairs of features, as trained or extended to longer texts by YaRN."""

import functools
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Yarn:
    """Settings of YaRN (Peng et al. 2023), which extends Qwen from 32,768 to 131,072 tokens.

    Pairs that turn more than `beta_fast` times in the original context keep their frequency,
    because they distinguish adjacent tokens. The frequency of pairs that turn less than `beta_slow`
    times is divided by `factor`, because they encode the position in the whole text. For the pairs
    in between, the change rises linearly with the index of the pair. This rise is the ramp. Rotated
    vectors are multiplied by `magnitude`, since attention over more keys needs sharper scores.

    Attributes:
        factor: new context length / original context length.
        original_max_position_embeddings: context length of the training, in tokens.
        beta_fast: number of turns in the original context above which a pair keeps its frequency.
        beta_slow: number of turns in the original context below which the frequency of a pair is
            divided by `factor`.
        attention_factor: the magnitude; None for 0.1 ln(factor) + 1, as in the paper.
        truncate: True to round the ends of the ramp outwards to whole pairs, as in the code of the
            paper.

    Raises:
        ValueError: if a setting is out of range.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        """Refuse settings that would divide by zero or shrink a context."""
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"factor: expected a number from 1, got {self.factor}")
        if self.original_max_position_embeddings < 1:
            raise ValueError(
                "original_max_position_embeddings: expected at least 1, "
                f"got {self.original_max_position_embeddings}"
            )
        if not 0 < self.beta_slow <= self.beta_fast < math.inf:
            raise ValueError(
                f"beta_slow, beta_fast: expected 0 < beta_slow <= beta_fast, "
                f"got {self.beta_slow} and {self.beta_fast}"
            )
        if self.attention_factor is not None and not 0 < self.attention_factor < math.inf:
            raise ValueError(
                f"attention_factor: expected a number above 0, got {self.attention_factor}"
            )

    @property
    def magnitude(self) -> float:
        """The factor by which rotated queries and keys are multiplied."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0

    def ramp(self, dim: int, base: float) -> list[float]:
        """Return the ramp: a number from 0 (frequency kept) to 1 (divided by factor) for each pair.

        Args:
            dim: D, the number of features of a head.
            base: base of the frequencies, above 1.
        """

        def pair_of(turns: float) -> float:
            # Solve original / (2 pi base^(i / (D/2))) = turns for the pair i.
            ratio = self.original_max_position_embeddings / (turns * 2 * math.pi)
            return dim * math.log(ratio) / (2 * math.log(base))

        first, last = pair_of(self.beta_fast), pair_of(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        width = last - first if last != first else 0.001  # avoid a division by 0 below
        return [min(max((i - first) / width, 0.0), 1.0) for i in range(dim // 2)]


@functools.cache
def rotary_frequencies(dim: int, base: float, scaling: Yarn | None) -> tuple[float, ...]:
    """Return the radians per token of each of the D/2 pairs: base^(-i / (D/2)), scaled by YaRN.

    Raises:
        ValueError: if `scaling` is given with a base of 1 or less, for which YaRN has no ramp.
    """
    half = dim // 2
    unscaled = [base ** (-i / half) for i in range(half)]
    if scaling is None:
        return tuple(unscaled)
    if not base > 1:
        raise ValueError(f"base: expected a number above 1 for YaRN, got {base}")
    return tuple(
        frequency * (1 - ramp) + frequency / scaling.factor * ramp
        for frequency, ramp in zip(unscaled, scaling.ramp(dim, base), strict=True)
    )
