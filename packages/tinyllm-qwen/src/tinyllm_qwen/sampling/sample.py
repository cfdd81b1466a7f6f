"""The result of one sampling step."""

from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float, Int


@dataclass(frozen=True)
class Sample:
    """The chosen token, or the chosen token of each row, with log-probabilities.

    Log-probabilities are log_softmax of the logits of the model, before bias, penalties,
    temperature and filters, like the default of vLLM, `raw_logprobs`. So they describe the model
    and not the settings, and stay finite for a token that a filter would have removed.

    Every field is lazy. A log-probability that is not evaluated takes no time, but keeps the logits
    of its step in memory as long as the sample exists.

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
