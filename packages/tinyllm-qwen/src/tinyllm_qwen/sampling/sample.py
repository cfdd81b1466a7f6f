"""The result of one sampling step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import mlx.core as mx
from jaxtyping import Float, Int


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

    @cached_property
    def _logprobs(self) -> LogProbs:
        return self.make_logprobs()
