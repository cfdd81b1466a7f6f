"""Penalties, which lower the scores of tokens that have occurred before."""

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Float, Int

from tinyllm_qwen.sampling.params import SamplingParams


class Penalties:
    """The penalties of one sequence, and counts of the tokens that it contains so far.

    The repetition penalty comes first, and applies to tokens of the prompt and the output. The
    presence and frequency penalties apply to tokens of the output. vLLM does the same
    (`apply_penalties` in vllm/model_executor/layers/utils.py; OpenAI defines the latter two
    penalties). In mlx-lm, all three penalties apply to the last 20 tokens of prompt and output.

    Tokens are counted in two arrays of length V on the device, for prompt and output. `record` only
    adds to the graph, so that a token can be recorded before it is computed.
    """

    def __init__(self, params: SamplingParams, vocab_size: int, prompt: Sequence[int] = ()) -> None:
        """Start a sequence without output.

        Args:
            params: the settings, of which the three penalties are used.
            vocab_size: V.
            prompt: the token ids of the prompt, all below V.
        """
        self._repetition = params.repetition_penalty
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty
        self._in_prompt = mx.zeros((vocab_size,), dtype=mx.bool_)
        self._in_prompt[mx.array(list(prompt), dtype=mx.int32)] = True
        self._output_counts = mx.zeros((vocab_size,), dtype=mx.int32)

    def __call__(self, scores: Float[mx.array, "V"]) -> Float[mx.array, "V"]:
        """Return the scores with the three penalties applied."""
        scores = scores.astype(mx.float32)
        in_output = self._output_counts > 0
        if self._repetition != 1:
            seen = self._in_prompt | in_output
            # Both branches lower the score. Division would raise a negative score.
            lowered = mx.where(scores > 0, scores / self._repetition, scores * self._repetition)
            scores = mx.where(seen, lowered, scores)
        return scores - self._frequency * self._output_counts - self._presence * in_output

    def record(self, token: Int[mx.array, ""]) -> None:
        """Count one token of the output. The token may be an array that is not evaluated yet."""
        self._output_counts = self._output_counts.at[token].add(1)
