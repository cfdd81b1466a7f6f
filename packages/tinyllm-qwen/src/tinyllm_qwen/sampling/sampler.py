"""Samplers, which choose the next tokens of one sequence or of many sequences at once."""

import copy
import math
import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import mlx.core as mx
from jaxtyping import Bool, Float, Int, UInt32
from tinyllm_ops import REFERENCE, OpSet

from tinyllm_qwen.sampling.best_tokens import BestTokens
from tinyllm_qwen.sampling.candidates import Candidates
from tinyllm_qwen.sampling.params import SamplingParams
from tinyllm_qwen.sampling.penalties import Penalties

_NO_TOKEN = 2**31 - 1
"""An id above that of every token, which the minimum of some ids ignores."""

_LOWEST_ALLOWED = -1e30
"""The lowest score of a token that a grammar allows: below any logit, but above -inf."""


@dataclass(frozen=True)
class LogProbs:
    """Log-probabilities of the chosen token and of the most likely tokens.

    Attributes:
        chosen: the log-probability of the chosen id.
        top_tokens: the most likely ids, best first; None unless requested.
        top: the log-probabilities of the most likely ids.
    """

    chosen: Float[mx.array, "*batch"]
    top_tokens: Int[mx.array, "*batch K"] | None = None
    top: Float[mx.array, "*batch K"] | None = None


@dataclass(frozen=True, eq=False)
class Sample:
    """The chosen token, or the chosen token of each row, with log-probabilities.

    Log-probabilities are log_softmax of the logits of the model, before bias, penalties,
    temperature and filters, like the default of vLLM, `raw_logprobs`. So they describe the model
    and not the settings, and stay finite for a token that a filter would have removed.

    The token is lazy, and the graph of the log-probabilities is built at the first access. A
    log-probability that is not read takes no time, but keeps the logits of its step in memory as
    long as the sample exists.

    Attributes:
        token: the chosen id.
        make_logprobs: builds the graph of the log-probabilities.
    """

    token: Int[mx.array, "*batch"]
    make_logprobs: Callable[[], LogProbs] = field(repr=False)

    @property
    def logprob(self) -> Float[mx.array, "*batch"]:
        """The log-probability of the chosen id."""
        return self._logprobs.chosen

    @property
    def top_tokens(self) -> Int[mx.array, "*batch K"] | None:
        """The most likely ids, best first; None unless requested."""
        return self._logprobs.top_tokens

    @property
    def top_logprobs(self) -> Float[mx.array, "*batch K"] | None:
        """The log-probabilities of the most likely ids."""
        return self._logprobs.top

    @property
    def arrays(self) -> list[mx.array]:
        """The token and all log-probabilities, to compute them together."""
        fields = (self.token, self.logprob, self.top_tokens, self.top_logprobs)
        return [array for array in fields if array is not None]

    @cached_property
    def _logprobs(self) -> LogProbs:
        return self.make_logprobs()


class Sampler:
    """A sampler of the tokens of one sequence.

    The sampler works in float32, in the order of vLLM (see the docstring of
    vllm/v1/sample/sampler.py). It adds the logit bias and applies the penalties. Greedy decoding
    then takes the best token. Otherwise the sampler applies temperature, min-p, top-k, and top-p to
    the tokens that top-k has kept, and draws a token. mlx-lm 0.32 applies the filters before the
    temperature, in the order top-p, min-p, top-k (`make_sampler` in mlx_lm/sample_utils.py). Both
    agree at temperature 1 with a single filter.

    The sampler never waits for the device. `Sample.token` can be used in the graph of the next step
    before it is computed, and so can the penalties and the random keys after that token.

    Random numbers come from a key of this sampler, which is split at every token, and never from
    the global generator of MLX. Equal seeds therefore give equal tokens, whatever else the process
    computes.

    Attributes:
        params: the settings of the request.
        ops: the implementation of argmax, top-k and log-probability.
        adjusts: True if a bias or a penalty changes the scores.
        group_key: the key of the rows that `choose` computes together: the setting top-k, and True
            if top-p is used; None for greedy decoding.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        ops: OpSet = REFERENCE,
        prompt: Sequence[int] = (),
    ) -> None:
        """Make a sampler for the text after a prompt.

        Args:
            params: the settings of the request.
            vocab_size: V, the length of the logits.
            ops: the implementation of argmax, top-k and log-probability, usually `model.ops`.
            prompt: the token ids of the prompt, for the repetition penalty.

        Raises:
            ValueError: if V is 0, or `logit_bias` names a token outside the vocabulary.
        """
        if vocab_size < 1:
            raise ValueError(f"vocab_size: expected at least 1, got {vocab_size}")
        for token in params.logit_bias:
            if token >= vocab_size:
                raise ValueError(
                    f"logit_bias: expected token ids from 0 to {vocab_size - 1}, got {token}"
                )
        self.params = params
        self.ops = ops
        self.adjusts = params.has_penalties or bool(params.logit_bias)
        self.group_key = None if params.is_greedy else (params.top_k, params.top_p < 1)
        self._vocab_size = vocab_size
        self._biased_tokens = mx.array(list(params.logit_bias.keys()), dtype=mx.int32)
        self._biases = mx.array(list(params.logit_bias.values()), dtype=mx.float32)
        self._penalties = Penalties(params, vocab_size, prompt) if params.has_penalties else None
        seed = secrets.randbits(64) if params.seed is None else params.seed
        # The key from which later keys are split, and the key of the next token.
        self._keys: UInt32[mx.array, "2 2"] = mx.random.split(mx.random.key(seed))

    def __call__(self, logits: Float[mx.array, "V"] | BestTokens) -> Sample:
        """Choose the next token, and advance by the token.

        Best tokens give the same choice as all logits, except if scores are equal and the order of
        `ops.top_k` depends on k, as in MLX.

        Args:
            logits: the logits of one position, of any floating dtype; or at least `num_best` of its
                best tokens.

        Raises:
            ValueError: if an array does not have the shape `V`.
        """
        if not isinstance(logits, BestTokens) and logits.shape != (self._vocab_size,):
            raise ValueError(f"logits: expected shape {(self._vocab_size,)}, got {logits.shape}")
        token = choose([self], logits[None])[0]
        self.advance(token)
        return with_logprobs(token, logits, self.params.top_logprobs, self.ops)

    @property
    def num_best(self) -> int | None:
        """The number of best tokens that suffice for the choice and the reported log-probabilities.

        The number is None if all logits are needed: a draw without top-k may choose any token, and
        a bias or a penalty can make any token the best.
        """
        params = self.params
        if self.adjusts:
            return None
        if self.group_key is not None and not 0 < params.top_k < self._vocab_size:
            return None
        choices = 1 if self.group_key is None else params.top_k
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
            scores = mx.where(allowed, mx.maximum(scores, _LOWEST_ALLOWED), -math.inf)
        return scores

    def advance(self, token: Int[mx.array, ""] | int) -> None:
        """Advance to the position after `token`: count the token, and take the next random key."""
        if self._penalties is not None:
            self._penalties.record(mx.array(token))
        if self.group_key is not None:
            self._keys = mx.random.split(self._keys[0])

    def ahead(self, draft: Sequence[int]) -> list["Sampler"]:
        """Return this sampler, and a sampler for the position after each draft token.

        The sampler after a draft token chooses the token that this sampler would choose there, if
        it had chosen all draft tokens up to that position.
        """
        samplers = [self]
        for token in draft:
            sampler = copy.copy(samplers[-1])
            # A shallow copy is enough, because `Penalties` replaces its arrays and never writes
            # to them.
            sampler._penalties = copy.copy(sampler._penalties)
            sampler.advance(token)
            samplers.append(sampler)
        return samplers


def choose(
    samplers: Sequence[Sampler],
    logits: Float[mx.array, "R V"] | BestTokens,
    masks: Sequence[Bool[mx.array, "V"] | None] | None = None,
) -> Int[mx.array, "R"]:
    """Choose a token for each of R rows. The samplers do not advance.

    Rows with equal `group_key` are computed together: one `argmax` for all greedy rows, one `top_k`
    for all rows with the same k. Each row gets the token that its sampler would choose alone.

    Args:
        samplers: the sampler of each row.
        logits: the logits, or the best tokens `R N`, where N is at least the `num_best` of every
            sampler.
        masks: for each row, True for tokens to choose from, or None for all tokens. Masks need all
            logits. If `logit_bias` bans all allowed tokens, one of them is still chosen.
    """
    tokens, scores = (
        (logits.tokens, logits.scores) if isinstance(logits, BestTokens) else (None, logits)
    )
    masks = [None] * len(samplers) if masks is None else masks
    adjusted = {
        row: sampler.adjusted(scores[row], mask)
        for row, (sampler, mask) in enumerate(zip(samplers, masks, strict=True))
        if mask is not None or sampler.adjusts
    }
    groups: dict[tuple[object, bool], list[int]] = defaultdict(list)
    for row, sampler in enumerate(samplers):
        groups[sampler.group_key, row in adjusted].append(row)
    chosen = []
    for (_, is_adjusted), rows in groups.items():
        group = [samplers[row] for row in rows]
        if is_adjusted:
            chosen.append(_choose_alike(group, None, mx.stack([adjusted[row] for row in rows])))
        else:
            ids = None if tokens is None else take_rows(tokens, rows)
            chosen.append(_choose_alike(group, ids, take_rows(scores, rows)))
    if len(chosen) == 1:
        return chosen[0]
    order = [row for rows in groups.values() for row in rows]
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return mx.concatenate(chosen)[mx.array(inverse)]


def with_logprobs(
    token: Int[mx.array, "*batch"],
    scores: Float[mx.array, "*batch V"] | BestTokens,
    top: int,
    ops: OpSet = REFERENCE,
) -> Sample:
    """Make a sample of `token`, with the log-probabilities of the `top` most likely tokens.

    Args:
        token: the chosen token of each row.
        scores: the logits, or best tokens that include the chosen and the `top` best tokens.
        top: the number of most likely tokens to report. At most V are reported.
        ops: the implementation of top-k and log-probability.
    """
    return Sample(token, partial(_logprobs, token, scores, top, ops))


def _logprobs(
    token: Int[mx.array, "*batch"],
    scores: Float[mx.array, "*batch V"] | BestTokens,
    top: int,
    ops: OpSet,
) -> LogProbs:
    """Build the graph of the log-probabilities of a sample: see `with_logprobs`."""
    if isinstance(scores, BestTokens):
        is_chosen = scores.tokens == token[..., None]
        chosen = mx.where(is_chosen, scores.scores, -math.inf).max(axis=-1)
        if not top:
            return LogProbs(chosen - scores.log_total)
        best, found = ops.top_k(scores.scores, min(top, scores.scores.shape[-1]))
        tokens = mx.take_along_axis(scores.tokens, found, axis=-1)
        return LogProbs(chosen - scores.log_total, tokens, best - scores.log_total[..., None])
    if not top:
        return LogProbs(ops.log_probability(scores, token[..., None])[..., 0])
    _, found = ops.top_k(scores, min(top, scores.shape[-1]))
    ids = mx.concatenate([token[..., None], found], axis=-1)
    logprobs = ops.log_probability(scores, ids)
    return LogProbs(logprobs[..., 0], found, logprobs[..., 1:])


def take_rows(x: mx.array, rows: Sequence[int]) -> mx.array:
    """Return the listed rows of x; x itself if all rows are listed. `rows` must ascend."""
    return x if len(rows) == len(x) else x[mx.array(list(rows))]


def _choose_alike(
    samplers: Sequence[Sampler],
    tokens: Int[mx.array, "R N"] | None,
    scores: Float[mx.array, "R N"],
) -> Int[mx.array, "R"]:
    """Choose a token for each row. All samplers must have equal `group_key`."""
    params = [sampler.params for sampler in samplers]
    first, ops = params[0], samplers[0].ops
    if samplers[0].group_key is None:
        if tokens is None:
            return ops.argmax(scores)
        # If scores are equal, take the lowest id, as `argmax` does: candidates have any order.
        # If a score is NaN, so is the maximum, and equals no score: take the NaN of the lowest id.
        best = (scores == scores.max(axis=-1, keepdims=True)) | mx.isnan(scores)
        return mx.where(best, tokens, _NO_TOKEN).min(axis=-1)
    # Top-k first leaves fewer tokens for the other steps. The result is the same: the temperature
    # does not change the ranking, and min-p keeps a prefix of the ranking.
    candidates = Candidates(tokens, scores)
    if first.top_k > 0:
        candidates = candidates.top_k(first.top_k, ops)
    candidates = candidates.tempered([each.temperature for each in params])
    candidates = candidates.min_p([each.min_p for each in params])
    candidates = candidates.top_p([each.top_p for each in params])
    return candidates.draw(mx.stack([sampler.key for sampler in samplers]))
