"""The choices of one request."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import REFERENCE, OpSet
from tinyllm_qwen import Sampler, SamplingParams
from tinyllm_qwen.sampling.best_tokens import BestTokens
from tinyllm_qwen.sampling.sample import Sample

from tinyllm_engine.grammar.constraint import Constraint


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
        constraint: Constraint | None = None,
    ) -> None:
        """Begin after a prompt.

        Args:
            params: what the request asked for.
            vocab_size: V, the length of the logits.
            prompt: the ids of the prompt.
            ops: what looks through the logits.
            constraint: what the tokens must conform to, if anything.

        Raises:
            ValueError: if `params` do not suit the vocabulary.
        """
        sampler = Sampler(params, vocab_size, ops)
        sampler.start(mx.array(list(prompt), dtype=mx.int32))
        self._states = [sampler]
        self._constraint = constraint

    @property
    def is_constrained(self) -> bool:
        """Whether there is a grammar to look at, which takes the host some time."""
        return self._constraint is not None

    def admits(self, draft: Sequence[int]) -> int:
        """How many tokens of a draft could be chosen one after another."""
        return len(draft) if self._constraint is None else self._constraint.admits(draft)

    def choose(
        self, logits: Float[mx.array, "choices V"], draft: Sequence[int] = ()
    ) -> list[Sample]:
        """A token for each row; nothing waits for the device.

        Args:
            logits: after the last token, and after each token of the draft.
            draft: guesses, none that `admits` refuses.
        """
        constraint = self._constraint
        masks = [None] * len(logits) if constraint is None else constraint.masks(draft)
        samples = []
        for row, allowed in zip(logits, masks, strict=True):
            sampler = self._states[-1].fork()
            samples.append(sampler(row, allowed))
            self._states.append(sampler)
        return samples

    @property
    def reach(self) -> int | None:
        """How many of the best tokens settle the choice; None if every score counts."""
        return None if self._constraint is not None else self._states[-1].reach

    def choose_among(self, best: BestTokens) -> list[Sample]:
        """A token for each row, where at least the `reach` best are known and the others are not.

        Args:
            best: after the last token, and after each token of the draft.
        """
        samples = []
        for row in range(len(best.tokens)):
            sampler = self._states[-1].fork()
            samples.append(sampler.among(best.at(row)))
            self._states.append(sampler)
        return samples

    def keep(self, tokens: Sequence[int]) -> None:
        """Go on after these tokens, the first of those that were chosen last."""
        self._states = [self._states[len(tokens)]]
        if self._constraint is not None:
            self._constraint.consume(tokens)
