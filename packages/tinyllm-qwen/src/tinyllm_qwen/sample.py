"""The outcome of one sampling step."""

from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float, Int

_BLOCK = 512


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
    def of(cls, token: Int[mx.array, ""], logits: Float[mx.array, "V"], top: int) -> "Sample":
        """Report `token` and the `top` likeliest beside it; all V where `top` exceeds them."""
        # Differences from the maximum before the logarithm: at logits of 1e4 float32 has steps
        # of 1e-3, and log-probabilities deserve better.
        below_max = logits - logits.max()
        log_total = mx.log(_sum(mx.exp(below_max)))
        logprob = below_max[token] - log_total
        if top == 0:
            return cls(token, logprob)
        top = min(top, logits.size)
        best = mx.argpartition(-logits, top - 1)[:top]
        best = best[mx.argsort(-logits[best])]
        return cls(token, logprob, best.astype(mx.int32), below_max[best] - log_total)


def _sum(x: Float[mx.array, "V"]) -> Float[mx.array, ""]:
    # In two levels, because MLX's CPU sum runs through a row with one accumulator: over 151,936
    # probabilities it (and mx.logsumexp with it) is off by 2e-4, blocks of 512 by 5e-7.
    blocks = mx.pad(x, (0, -x.size % _BLOCK)).reshape(-1, _BLOCK)
    return blocks.sum(axis=-1).sum()
