"""The outcome of one sampling step."""

from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float, Int
from tinyllm_ops import REFERENCE, OpSet


@dataclass(frozen=True)
class Sample:
    """One token and what the model thought of it.

    Log-probabilities are of the model's own distribution, log_softmax of the logits as they came,
    before bias, penalties, temperature and filters: vLLM's default, `raw_logprobs`. They measure
    the model and not the settings, and they stay finite for a token that a filter would have cut.

    Every field is lazy. A log-probability that nobody evaluates costs no time, but it keeps the
    step's logits in memory for as long as the sample is held.

    Attributes:
        token: The chosen id.
        logprob: Its log-probability.
        top_tokens: The most likely ids, best first; None unless asked for.
        top_logprobs: Their log-probabilities.
    """

    token: Int[mx.array, ""]
    logprob: Float[mx.array, ""]
    top_tokens: Int[mx.array, "K"] | None = None
    top_logprobs: Float[mx.array, "K"] | None = None

    @classmethod
    def of(
        cls,
        token: Int[mx.array, ""],
        logits: Float[mx.array, "V"],
        top: int,
        ops: OpSet = REFERENCE,
    ) -> "Sample":
        """Report `token` and the `top` likeliest beside it; all V where `top` exceeds them."""
        if top == 0:
            return cls(token, ops.log_probability(logits, token[None])[0])
        _, best = ops.top_k(logits, min(top, logits.size))
        logprobs = ops.log_probability(logits, mx.concatenate([token[None], best]))
        return cls(token, logprobs[0], best, logprobs[1:])
