"""What guesses at tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tinyllm_engine.schedule.step import Plan
from tinyllm_engine.sequence import Sequence
from tinyllm_engine.speculative.acceptance import Acceptance


class Drafter(Protocol):
    """Guesses the next tokens, to be computed beside the last one and kept as far as right.

    Lossless whatever is guessed (Leviathan et al. 2023, in the form in which the request's own
    sampler chooses each token and a draft is right if it is what was chosen): see `Chooser`.

    Attributes:
        acceptance: how guesses went.
    """

    acceptance: Acceptance

    def guess(self, limits: Mapping[Sequence, int]) -> None:
        """Give drafts, perhaps empty, to sequences that decode: each at most so many tokens."""
        ...

    def follow(self, plan: Plan) -> None:
        """Take note of what is about to be computed, prompts among it."""
        ...

    def judge(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Learn how many tokens of a draft were right, after the tokens chosen were appended."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop what is remembered of a sequence."""
        ...
