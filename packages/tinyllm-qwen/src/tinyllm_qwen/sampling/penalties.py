"""Scores lowered for tokens that have been seen: repetition, presence, frequency."""

import mlx.core as mx
from jaxtyping import Float, Int, Integer

from tinyllm_qwen.sampling.params import SamplingParams


class Penalties:
    """The tokens that one sequence contains so far, and the penalties for repeating them.

    Repetition looks at the prompt and the output, presence and frequency at the output alone,
    and repetition comes first, as in vLLM (`apply_penalties` in
    vllm/model_executor/layers/utils.py; OpenAI defines the latter two). mlx-lm instead looks back
    over the last 20 tokens, prompt or output, for all three.

    The tokens are counted in one array of length V each for prompt and output, kept on the device:
    `record` adds to the graph of a token that has perhaps not been computed yet.
    """

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        """Start without tokens, for a vocabulary of V."""
        self._repetition = params.repetition_penalty
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty
        self._vocab_size = vocab_size
        self.start(mx.zeros((0,), dtype=mx.int32))

    def start(self, prompt: Integer[mx.array, "L"]) -> None:
        """Forget the last sequence, and begin a new one after `prompt`, with ids below V."""
        in_prompt = mx.zeros((self._vocab_size,), dtype=mx.bool_)
        in_prompt[prompt] = True
        self._in_prompt = in_prompt
        self._output_counts = mx.zeros((self._vocab_size,), dtype=mx.int32)

    def __call__(self, scores: Float[mx.array, "V"]) -> Float[mx.array, "V"]:
        """Return the scores with the three penalties applied."""
        scores = scores.astype(mx.float32)
        in_output = self._output_counts > 0
        if self._repetition != 1:
            seen = self._in_prompt | in_output
            # Both branches lower the score: division alone would raise a negative one.
            lowered = mx.where(scores > 0, scores / self._repetition, scores * self._repetition)
            scores = mx.where(seen, lowered, scores)
        return scores - self._frequency * self._output_counts - self._presence * in_output

    def record(self, token: Int[mx.array, ""]) -> None:
        """Count one token of output, computed or not."""
        self._output_counts = self._output_counts.at[token].add(1)
