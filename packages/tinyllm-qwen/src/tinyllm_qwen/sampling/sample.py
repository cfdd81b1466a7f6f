"""The result of one sampling step."""

from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float, Int


@dataclass(frozen=True)
class Sample:
    """A token, or a token of each row, and its log-probability in the model.

    Log-probabilities are of the model's own distribution, log_softmax of the logits as they came,
    before bias, penalties, temperature and filters: vLLM's default, `raw_logprobs`. They measure
    the model and not the settings, and they stay finite for a token that a filter would have cut.

    Every field is lazy. A log-probability that is not evaluated costs no time, but it keeps the
    step's logits in memory for as long as the sample is held.

    Attributes:
        token: the chosen id.
        logprob: the log-probability of the chosen id.
        top_tokens: the most likely ids, best first; None unless requested.
        top_logprobs: the log-probabilities of the most likely ids.
    """

    token: Int[mx.array, "*batch"]
    logprob: Float[mx.array, "*batch"]
    top_tokens: Int[mx.array, "*batch K"] | None = None
    top_logprobs: Float[mx.array, "*batch K"] | None = None
