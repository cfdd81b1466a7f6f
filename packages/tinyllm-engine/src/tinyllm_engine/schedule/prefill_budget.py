"""The number of prompt tokens that a step prefills."""

from tinyllm_qwen.config.experts import Experts

from tinyllm_engine.config import EngineSettings

_TILE = 32
"""Kernels compute prompts in tiles of this many tokens. A step prefills at least one tile, because
with fewer tokens reading the weights takes most of the time."""

_ROWS_PER_EXPERT = 4
"""The rows that each expert computes in the shortest step, on average. A step reads the weights of
nearly all experts, so that with fewer rows reading takes most of the time."""

_ALONE = 4
"""The factor of the duration if no request waits for its next token. Reading the weights then takes
a smaller part of the time of a long prompt."""

_LEAST_PART = 4
"""A pass of less than one part in four of the tokens is not measured: reading the weights takes
much of its time. The last token of a prompt in the prefix cache is such a pass."""

_SMOOTHING = 0.3
"""The weight of the latest step in the moving average of the speed."""


class PrefillBudget:
    """Measures the speed of the prefill, and adapts the number of tokens to a target duration.

    Attributes:
        seconds: the target duration of the prefill in a step.
        max_num_batched_tokens: the upper limit of `tokens`.
        tokens: the number of prompt tokens for the next step.
        tokens_alone: the same for a step while no request decodes.
    """

    def __init__(self, settings: EngineSettings, experts: Experts | None = None) -> None:
        """Start with a small number of tokens, until the first measurement."""
        self.seconds = settings.step_seconds
        self.max_num_batched_tokens = settings.max_num_batched_tokens
        self._least = _TILE
        if experts is not None:
            tokens = _ROWS_PER_EXPERT * experts.num_experts // experts.num_experts_per_tok
            self._least = max(tokens // _TILE * _TILE, _TILE)
        self._rate: float | None = None  # tokens per second
        self.tokens = self.tokens_alone = min(
            max(4 * _TILE, self._least), self.max_num_batched_tokens
        )

    def observe(self, tokens: int, seconds: float) -> None:
        """Update the speed and `tokens` after a step prefilled `tokens` tokens in `seconds`."""
        if self._rate is not None and tokens * _LEAST_PART < self.tokens:
            return
        rate = tokens / max(seconds, 1e-9)
        self._rate = rate if self._rate is None else self._rate + _SMOOTHING * (rate - self._rate)
        self.tokens = self._whole_tiles(self._rate * self.seconds)
        self.tokens_alone = self._whole_tiles(self._rate * self.seconds * _ALONE)

    def _whole_tiles(self, tokens: float) -> int:
        """Return a number of tokens in whole tiles, within the limits."""
        whole = int(tokens) // _TILE * _TILE
        return min(max(whole, self._least), self.max_num_batched_tokens)
