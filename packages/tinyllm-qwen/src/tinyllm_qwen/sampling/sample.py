"""The result of one sampling step."""

from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float, Int


@dataclass(frozen=True)
class Sample:
    """A token, or a token of each row, and the model's own opinion of it.

    Log-probabilities are of the model's own distribution, log_softmax of the logits as they came,
    before bias, penalties, temperature and filters: vLLM's default, `raw_logprobs`. They measure
    the model and not the settings, and they stay finite for a token that a filter would have cut.

    Every field is lazy. A log-probability that is not evaluated costs no time, but it keeps the
    step's logits in memory for as long as the sample is held.

    Attributes:
        token: The chosen id.
        logprob: Its log-probability.
        top_tokens: The most likely ids, best first; None unless asked for.
        top_logprobs: Their log-probabilities.
    """

    token: Int[mx.array, "*batch"]
    logprob: Float[mx.array, "*batch"]
    top_tokens: Int[mx.array, "*batch K"] | None = None
    top_logprobs: Float[mx.array, "*batch K"] | None = None
