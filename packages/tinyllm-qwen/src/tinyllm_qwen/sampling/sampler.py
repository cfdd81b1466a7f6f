"""Sampling of the next token, for one sequence and for many at once."""

import copy
import math
import secrets
from collections import defaultdict
from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Bool, Float, Int, Integer, UInt32
from tinyllm_ops import REFERENCE, OpSet

from tinyllm_qwen.sampling.best_tokens import BestTokens
from tinyllm_qwen.sampling.candidates import Candidates
from tinyllm_qwen.sampling.params import SamplingParams
from tinyllm_qwen.sampling.penalties import Penalties
from tinyllm_qwen.sampling.sample import Sample

_LAST_TOKEN = 2**31 - 1
_RULED_OUT = -1e30
"""The lowest score of an allowed token: far below all others, and above -inf."""


class Sampler:
    """A sampler of the tokens of one sequence.

    In float32, in vLLM's order (the docstring of vllm/v1/sample/sampler.py): logit bias,
    penalties; then the best token, or: temperature, min-p, top-k, top-p over what top-k left, and
    a draw. mlx-lm 0.32 filters before it applies the temperature, top-p first, then min-p, then
    top-k (`make_sampler` in mlx_lm/sample_utils.py): at temperature 1 and with one filter alone
    the two agree.

    Nothing here waits for the device. `Sample.token` can go into the next step's graph before it
    has been computed, and the penalties and random keys follow it there.

    Random numbers come from a key of the sampler's own, split at every token, and never from MLX's
    global generator. A seed therefore gives the same tokens beside any other work in the process.

    Attributes:
        params: the settings of the request.
        ops: the functions that search the logits.
        adjusts: True if a bias or a penalty changes the scores.
        steps: the steps that rows must share to be computed together; None for greedy decoding.
    """

    def __init__(self, params: SamplingParams, vocab_size: int, ops: OpSet = REFERENCE) -> None:
        """Make a sampler that has seen no tokens.

        Args:
            params: the settings of the request.
            vocab_size: V, the length of the logits.
            ops: the functions that search the logits, as a rule the model's own.

        Raises:
            ValueError: if V is 0, or `logit_bias` names a token outside the vocabulary.
        """
        if vocab_size < 1:
            raise ValueError(f"vocab_size: expected at least 1, got {vocab_size}")
        for token in params.logit_bias:
            if token >= vocab_size:
                raise ValueError(f"logit_bias: expected token ids below {vocab_size}, got {token}")
        self.params = params
        self.ops = ops
        self.adjusts = params.has_penalties or bool(params.logit_bias)
        self.steps = None if params.is_greedy else (params.top_k, params.top_p < 1)
        self._vocab_size = vocab_size
        self._biased_tokens = mx.array(list(params.logit_bias.keys()), dtype=mx.int32)
        self._biases = mx.array(list(params.logit_bias.values()), dtype=mx.float32)
        self._penalties = Penalties(params, vocab_size) if params.has_penalties else None
        self._keys = self._first_keys()

    def start(self, prompt: Integer[mx.array, "L"]) -> None:
        """Begin a sequence: forget the last one's tokens and draw again from the seed.

        Args:
            prompt: the ids already in context, for the repetition penalty; it may be empty.

        Raises:
            ValueError: if `prompt` is not one row of integers.
        """
        if prompt.ndim != 1 or not mx.issubdtype(prompt.dtype, mx.integer):
            raise ValueError(
                f"prompt: expected one row of integer ids, got {prompt.dtype} of {prompt.shape}"
            )
        if self._penalties is not None:
            self._penalties.start(prompt)
        self._keys = self._first_keys()

    def __call__(
        self, logits: Float[mx.array, "V"], allowed: Bool[mx.array, "V"] | None = None
    ) -> Sample:
        """Choose the token after the position that gave these logits, and advance by it.

        Args:
            logits: the model's scores, of any floating dtype.
            allowed: the tokens to choose from; None allows all. One of them is chosen even if
                `logit_bias` bans all of them.

        Raises:
            ValueError: if `logits` is not one row of the vocabulary's length.
        """
        if logits.shape != (self._vocab_size,):
            raise ValueError(f"logits: expected shape {(self._vocab_size,)}, got {logits.shape}")
        token = choose([self], Candidates(None, logits[None]), [allowed])[0]
        self.advance(token)
        return with_logprobs(token, logits, self.params.top_logprobs, self.ops)

    def from_candidates(self, best: BestTokens) -> Sample:
        """Choose from the best tokens, at least `num_candidates` of them, and advance.

        The token is the same as from all scores, except if scores tie for the last place: see
        `Candidates.top_k`.
        """
        token = choose([self], Candidates(best.tokens[None], best.scores[None]))[0]
        self.advance(token)
        return with_logprobs(token, best, self.params.top_logprobs, self.ops)

    @property
    def num_candidates(self) -> int | None:
        """The number of best tokens that decide the choice and the log-probabilities reported.

        None if every score counts: without top-k a draw and its filters look at all of them, and a
        bias or a penalty can bring any token to the top.
        """
        params = self.params
        if self.adjusts:
            return None
        if self.steps is not None and not 0 < params.top_k < self._vocab_size:
            return None
        choices = 1 if self.steps is None else params.top_k
        return min(max(choices, params.top_logprobs), self._vocab_size)

    @property
    def key(self) -> UInt32[mx.array, "2"]:
        """The random key of the next token."""
        return self._keys[1]

    def adjusted(
        self, logits: Float[mx.array, "V"], allowed: Bool[mx.array, "V"] | None
    ) -> Float[mx.array, "V"]:
        """Return the scores with bias and penalties; -inf for tokens that are not allowed."""
        scores = logits.astype(mx.float32)
        if self._biases.size:
            scores = scores.at[self._biased_tokens].add(self._biases)
        if self._penalties is not None:
            scores = self._penalties(scores)
        if allowed is not None:
            scores = mx.where(allowed, mx.maximum(scores, _RULED_OUT), -math.inf)
        return scores

    def advance(self, token: Int[mx.array, ""] | int) -> None:
        """Go on to the position after `token`: count it, and take the next random key."""
        if self._penalties is not None:
            self._penalties.record(mx.array(token))
        if self.steps is not None:
            self._keys = mx.random.split(self._keys[0])

    def ahead(self, draft: Sequence[int]) -> list["Sampler"]:
        """Return this sampler, and a sampler for the position after each draft token.

        Each of them chooses the token that this sampler would choose at that position after it had
        chosen the draft tokens.
        """
        states = [self]
        for token in draft:
            twin = copy.copy(states[-1])
            twin._penalties = copy.copy(twin._penalties)  # its arrays are replaced, never written
            twin.advance(token)
            states.append(twin)
        return states

    def _first_keys(self) -> UInt32[mx.array, "2 2"]:
        """Return the key from which the next keys are split, and the key of the next token."""
        seed = self.params.seed
        return mx.random.split(mx.random.key(secrets.randbits(64) if seed is None else seed))


def choose(
    samplers: Sequence[Sampler],
    candidates: Candidates,
    allowed: Sequence[Bool[mx.array, "V"] | None] | None = None,
) -> Int[mx.array, "R"]:
    """Choose a token for each of R rows; no sampler advances.

    Rows with the same steps are computed together: one `argmax` for all greedy rows, one `top_k`
    for all rows of the same k. Each row gets the token that its sampler chooses alone.

    Args:
        samplers: the sampler of each row.
        candidates: the logits `R V`, or the best tokens of each row `R N`, at least
            `num_candidates` of its sampler.
        allowed: the tokens to choose from, for each row; None allows all. For logits only.
    """
    masks = [None] * len(samplers) if allowed is None else allowed
    adjusted = {
        row: sampler.adjusted(candidates.scores[row], mask)
        for row, (sampler, mask) in enumerate(zip(samplers, masks, strict=True))
        if mask is not None or sampler.adjusts
    }
    groups: dict[tuple[object, bool], list[int]] = defaultdict(list)
    for row, sampler in enumerate(samplers):
        groups[sampler.steps, row in adjusted].append(row)
    chosen = []
    for (_, is_adjusted), rows in groups.items():
        group = [samplers[row] for row in rows]
        if is_adjusted:
            chosen.append(_choose_alike(group, None, mx.stack([adjusted[row] for row in rows])))
        else:
            tokens = candidates.tokens
            own = None if tokens is None else take_rows(tokens, rows)
            chosen.append(_choose_alike(group, own, take_rows(candidates.scores, rows)))
    if len(chosen) == 1:
        return chosen[0]
    order = [row for rows in groups.values() for row in rows]
    back = sorted(range(len(order)), key=order.__getitem__)
    return mx.concatenate(chosen)[mx.array(back)]


def with_logprobs(
    token: Int[mx.array, "*batch"],
    scores: Float[mx.array, "*batch V"] | BestTokens,
    top: int,
    ops: OpSet = REFERENCE,
) -> Sample:
    """Report `token` and the `top` likeliest tokens; all V if `top` exceeds V."""
    if isinstance(scores, BestTokens):
        is_chosen = scores.tokens == token[..., None]
        chosen = mx.where(is_chosen, scores.scores, -math.inf).max(axis=-1)
        if not top:
            return Sample(token, chosen - scores.log_total)
        best = Candidates(scores.tokens, scores.scores).top_k(top, ops)
        log_total = scores.log_total[..., None]
        return Sample(token, chosen - log_total[..., 0], best.tokens, best.scores - log_total)
    if not top:
        return Sample(token, ops.log_probability(scores, token[..., None])[..., 0])
    _, found = ops.top_k(scores, min(top, scores.shape[-1]))
    ids = mx.concatenate([token[..., None], found], axis=-1)
    logprobs = ops.log_probability(scores, ids)
    return Sample(token, logprobs[..., 0], found, logprobs[..., 1:])


def take_rows(x: mx.array, rows: Sequence[int]) -> mx.array:
    """Return rows of x, given in ascending order; x itself if they are all rows."""
    return x if len(rows) == len(x) else x[mx.array(list(rows))]


def _choose_alike(
    samplers: Sequence[Sampler],
    tokens: Int[mx.array, "R N"] | None,
    scores: Float[mx.array, "R N"],
) -> Int[mx.array, "R"]:
    """Choose a token for each row, of samplers with the same `steps`."""
    params = [sampler.params for sampler in samplers]
    first, ops = params[0], samplers[0].ops
    if samplers[0].steps is None:
        if tokens is None:
            return ops.argmax(scores)
        # Of equal scores the first token, as `argmax` takes it: candidates may be in any order.
        best = scores == scores.max(axis=-1, keepdims=True)
        return mx.where(best, tokens, _LAST_TOKEN).min(axis=-1)
    # Top-k may come before the temperature, which leaves the ranking as it is, and before min-p,
    # which keeps a prefix of it: it leaves fewer tokens for those steps.
    candidates = Candidates(tokens, scores)
    if first.top_k > 0:
        candidates = candidates.top_k(first.top_k, ops)
    candidates = candidates.tempered([each.temperature for each in params])
    candidates = candidates.min_p([each.min_p for each in params])
    candidates = candidates.top_p([each.top_p for each in params])
    return candidates.draw(mx.stack([sampler.key for sampler in samplers]))
