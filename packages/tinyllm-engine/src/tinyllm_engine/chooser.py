"""The choices of one request."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import REFERENCE, OpSet
from tinyllm_qwen import Sampler, SamplingParams
from tinyllm_qwen.sample import Sample


class Chooser:
    """Chooses the tokens after a sequence's last one and its drafts, and keeps those that hold.

    A token after a draft is chosen as if the draft were right: as the sampler, with its penalties
    and its random numbers, stands after having chosen that draft itself. If it did, the token is
    what would have been chosen one step later; if not, it is dropped, and the sampler goes back.
    So drafts change how soon a token comes and never which one.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        prompt: Sequence[int],
        ops: OpSet = REFERENCE,
    ) -> None:
        """Begin after a prompt; `ops` is what looks through the logits.

        Raises:
            ValueError: if `params` do not suit the vocabulary.
        """
        sampler = Sampler(params, vocab_size, ops)
        sampler.start(mx.array(list(prompt), dtype=mx.int32))
        self._states = [sampler]

    def choose(self, logits: Float[mx.array, "choices V"]) -> list[Sample]:
        """A token for each row; nothing waits for the device."""
        samples = []
        for row in logits:
            sampler = self._states[-1].fork()
            samples.append(sampler(row))
            self._states.append(sampler)
        return samples

    def keep(self, count: int) -> None:
        """Go on after the first `count` tokens of those that were chosen last."""
        self._states = [self._states[count]]
