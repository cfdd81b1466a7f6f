"""From the logits of one position to the next token."""

import copy
import math
import secrets

import mlx.core as mx
from jaxtyping import Bool, Float, Int, Integer
from tinyllm_ops import REFERENCE, OpSet

from tinyllm_qwen.sampling.best_tokens import BestTokens
from tinyllm_qwen.sampling.candidates import Candidates
from tinyllm_qwen.sampling.params import SamplingParams
from tinyllm_qwen.sampling.penalties import Penalties
from tinyllm_qwen.sampling.sample import Sample

_RULED_OUT = -1e30
"""The least score of a token that is allowed: nothing beside others, and more than -inf."""


class Sampler:
    """Chooses the tokens of one sequence.

    In float32, in vLLM's order (the docstring of vllm/v1/sample/sampler.py): logit bias,
    penalties; then the best token, or: temperature, min-p, top-k, top-p over what top-k left, and
    a draw. mlx-lm 0.32 filters before it applies the temperature, top-p first, then min-p, then
    top-k (`make_sampler` in mlx_lm/sample_utils.py): at temperature 1 and with one filter alone
    the two agree.

    Nothing here waits for the device. `Sample.token` can go into the next step's graph before it
    has been computed, and the penalties and random keys follow it there.

    Random numbers come from a key of the sampler's own, split at every step, never from MLX's
    global generator: a seed gives the same tokens whatever else runs in the process.
    """

    def __init__(self, params: SamplingParams, vocab_size: int, ops: OpSet = REFERENCE) -> None:
        """Make a sampler that has seen no tokens.

        Args:
            params: What the request asked for.
            vocab_size: V, the length of the logits.
            ops: what looks through the logits, as a rule the model's own.

        Raises:
            ValueError: V is 0, or `logit_bias` names a token outside the vocabulary.
        """
        if vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, got {vocab_size}")
        for token in params.logit_bias:
            if token >= vocab_size:
                raise ValueError(f"logit_bias: token id must be in [0, {vocab_size}), got {token}")
        self._params = params
        self._is_greedy = params.is_greedy
        self._ops = ops
        self._vocabulary = mx.arange(vocab_size, dtype=mx.int32)
        self._biased_tokens = mx.array(list(params.logit_bias.keys()), dtype=mx.int32)
        self._biases = mx.array(list(params.logit_bias.values()), dtype=mx.float32)
        self._penalties = Penalties(params, vocab_size)
        self._key = self._first_key()

    def start(self, prompt: Integer[mx.array, "L"]) -> None:
        """Begin a sequence: forget the last one's tokens and draw again from the seed.

        Args:
            prompt: The ids already in context, for the repetition penalty; perhaps none.

        Raises:
            ValueError: `prompt` is not one row of integers.
        """
        if prompt.ndim != 1 or not mx.issubdtype(prompt.dtype, mx.integer):
            raise ValueError(
                f"prompt must be one row of integer ids, got {prompt.dtype} of {prompt.shape}"
            )
        self._penalties.start(prompt)
        self._key = self._first_key()

    def __call__(
        self, logits: Float[mx.array, "V"], allowed: Bool[mx.array, "V"] | None = None
    ) -> Sample:
        """Choose the token after the position that gave these logits.

        Args:
            logits: The model's scores, of any floating dtype.
            allowed: The tokens to choose from, if not all. One of them is chosen in any case, even
                if `logit_bias` bans every one.

        Raises:
            ValueError: `logits` is not one row of the vocabulary's length.
        """
        expected = self._vocabulary.shape
        if logits.shape != expected:
            raise ValueError(f"logits must have shape {expected}, got {logits.shape}")
        scores = self._add_bias(logits)
        if self._penalties.active:
            scores = self._penalties(scores)
        if allowed is not None:
            scores = mx.maximum(scores.astype(mx.float32), _RULED_OUT)
            scores = mx.where(allowed, scores, -math.inf)
        token = self._choose(scores)
        if self._penalties.active:
            self._penalties.record(token)
        return Sample.of(token, logits, self._params.top_logprobs, self._ops)

    @property
    def num_candidates(self) -> int | None:
        """The number of best tokens that settle the choice and its report.

        None if every score counts: without top-k a draw and its filters look at all of them, and a
        bias or a penalty can bring any token to the top.
        """
        params = self._params
        if self._biases.size or self._penalties.active:
            return None
        if not params.is_greedy and not 0 < params.top_k < self._vocabulary.size:
            return None
        choices = 1 if params.is_greedy else params.top_k
        return min(max(choices, params.top_logprobs), self._vocabulary.size)

    def from_candidates(self, best: BestTokens) -> Sample:
        """Choose among the best tokens, of which at least `num_candidates` are known.

        The token is the one that all scores would have given, but for scores that tie for the last
        place: see `Candidates.top_k`.
        """
        candidates = Candidates(best.tokens, best.scores)
        if self._params.is_greedy:
            token = best.tokens[self._ops.argmax(best.scores)]
        else:
            token = self._draw(candidates)
        chosen = mx.where(best.tokens == token, best.scores, -math.inf).max()
        logprob, top = chosen - best.log_total, self._params.top_logprobs
        if top == 0:
            return Sample(token, logprob)
        rivals = candidates.top_k(top, self._ops)
        return Sample(token, logprob, rivals.tokens, rivals.scores - best.log_total)

    def fork(self) -> "Sampler":
        """A second sampler that stands where this one does, and goes its own way from here."""
        twin = copy.copy(self)
        twin._penalties = copy.copy(self._penalties)  # its arrays are replaced, never written
        return twin

    def _add_bias(self, scores: Float[mx.array, "V"]) -> Float[mx.array, "V"]:
        if self._biases.size == 0:
            return scores
        return scores.astype(mx.float32).at[self._biased_tokens].add(self._biases)

    def _choose(self, scores: Float[mx.array, "V"]) -> Int[mx.array, ""]:
        if self._is_greedy:
            return self._ops.argmax(scores)
        return self._draw(Candidates(self._vocabulary, scores))

    def _draw(self, candidates: Candidates) -> Int[mx.array, ""]:
        params = self._params
        # Top-k may come before the temperature, which leaves the ranking as it is, and before
        # min-p, which keeps a beginning of it: what changes is the number of tokens that those
        # have to look at.
        if params.top_k > 0:
            candidates = candidates.top_k(params.top_k, self._ops)
        candidates = candidates.tempered(params.temperature)
        self._key, step_key = mx.random.split(self._key)
        return candidates.min_p(params.min_p).top_p(params.top_p).draw(step_key)

    def _first_key(self) -> mx.array:
        seed = self._params.seed
        return mx.random.key(secrets.randbits(64) if seed is None else seed)
