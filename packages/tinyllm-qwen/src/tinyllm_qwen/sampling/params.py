"""The sampling parameters of a request, checked by their constructor."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import SupportsIndex

_GREEDY_BELOW = 1e-5
"""The temperature below which decoding is greedy, as in vLLM, because scores divided by a smaller
number may overflow float32."""


_LARGEST = 1e10
"""The largest temperature, penalty and bias. A score that is changed by all of them still fits
float32; an infinite score would make others NaN."""

_INTEGERS = ("top_k", "top_logprobs", "seed")
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Settings of the sampler. The defaults are greedy decoding without penalties.

    Attributes:
        temperature: the divisor of the scores. 0, or any number below 1e-5, is greedy decoding.
        top_k: the number of best tokens to draw from; 0 for no limit.
        top_p: the probability mass of the best tokens to draw from; 1 for no limit.
        min_p: the least probability of a token to draw, relative to the best token; 0 for no limit.
        repetition_penalty: the penalty of tokens in the prompt or the output. Positive scores are
            divided by the penalty, negative scores are multiplied by it (CTRL, arXiv:1909.05858).
            1 has no effect.
        presence_penalty: the number subtracted once from the score of each token in the output.
        frequency_penalty: the number subtracted for each occurrence of a token in the output.
        logit_bias: numbers added to the scores of single tokens, by id; -inf bans a token.
        seed: the seed of the random numbers. Equal seeds give equal tokens. None draws a random
            seed.
        top_logprobs: the number of most likely tokens to report with each chosen token.

    Raises:
        ValueError: if a setting is NaN or out of range, or not an integer where one is needed.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    # A dict has no hash, so the field is left out of the hash. Equal parameters still hash equal.
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        """Check every range."""
        for name in _INTEGERS:
            if (number := getattr(self, name)) is not None:
                object.__setattr__(self, name, _integer(name, number))
        for name in _NUMBERS:
            if not isinstance(number := getattr(self, name), Real):
                raise ValueError(f"{name}: expected a number, got {number!r}")
        if not isinstance(self.logit_bias, Mapping):
            raise ValueError(f"logit_bias: expected numbers by token id, got {self.logit_bias!r}")
        # Copy the mapping, because the caller may change the original.
        biases = {_integer("logit_bias", each): bias for each, bias in self.logit_bias.items()}
        object.__setattr__(self, "logit_bias", biases)
        # Every comparison with NaN is false, so NaN fails each of these checks.
        temperature = self.temperature
        _require("temperature", temperature, "in [0, 1e10]", 0 <= temperature <= _LARGEST)
        _require("top_k", self.top_k, "in [0, inf)", self.top_k >= 0)
        _require("top_p", self.top_p, "in (0, 1]", 0 < self.top_p <= 1)
        _require("min_p", self.min_p, "in [0, 1]", 0 <= self.min_p <= 1)
        penalty = self.repetition_penalty
        holds = 1 / _LARGEST <= penalty <= _LARGEST
        _require("repetition_penalty", penalty, "in [1e-10, 1e10]", holds)
        penalty = self.presence_penalty
        _require("presence_penalty", penalty, "in [-2, 2]", -2 <= penalty <= 2)
        penalty = self.frequency_penalty
        _require("frequency_penalty", penalty, "in [-2, 2]", -2 <= penalty <= 2)
        _require("top_logprobs", self.top_logprobs, "in [0, inf)", self.top_logprobs >= 0)
        if self.seed is not None:
            _require("seed", self.seed, "in [0, 2^64)", 0 <= self.seed < 2**64)
        for token, bias in self.logit_bias.items():
            _require("logit_bias", token, "in [0, vocabulary size)", token >= 0)
            _require(f"logit_bias[{token}]", bias, "in [-inf, 1e10]", bias <= _LARGEST)

    @property
    def is_greedy(self) -> bool:
        """True for greedy decoding, which takes the best token without random numbers."""
        return self.temperature < _GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """True if the score of a token depends on the tokens before it."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1, 0, 0)


def _integer(name: str, number: SupportsIndex) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise ValueError(f"{name}: expected an integer, got {number!r}") from None


def _require(name: str, value: float | int, expected: str, holds: bool) -> None:
    if not holds:
        raise ValueError(f"{name}: expected a number {expected}, got {value}")
