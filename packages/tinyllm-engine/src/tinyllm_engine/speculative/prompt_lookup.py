"""Guesses from what the text has said before: speculation without a second model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tinyllm_engine.schedule.step import Plan
from tinyllm_engine.sequence import Sequence
from tinyllm_engine.speculative.acceptance import Acceptance

_GRAM = 3
"""Tokens that must have stood before a guess. Two match too much, four too little."""


@dataclass
class _Memory:
    """Where each run of tokens was seen last."""

    after: dict[tuple[int, ...], int] = field(default_factory=dict)
    seen: int = 0


class PromptLookup:
    """When the last tokens stood in the text before, what followed them may follow again.

    Prompt lookup decoding (Saxena 2023): code that is edited, text that is quoted or summed up.
    Each guess is computed beside the last token and kept only if it is what would have been chosen;
    a sequence whose guesses are poor goes on without for a while.

    Attributes:
        acceptance: how guesses went.
    """

    def __init__(self) -> None:
        """Start without memories."""
        self.acceptance = Acceptance()
        self._memories: dict[Sequence, _Memory] = {}

    def guess(self, limits: Mapping[Sequence, int]) -> None:
        """Give each sequence a draft, if something like what it says now was said before."""
        for sequence, limit in limits.items():
            sequence.draft[:] = self._continuation(sequence, limit)

    def follow(self, plan: Plan) -> None:
        """Do nothing: what is computed says nothing that the tokens do not say."""

    def judge(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Learn how many tokens of a draft were right."""
        self.acceptance.judge(sequence, drafted, accepted)

    def forget(self, sequence: Sequence) -> None:
        """Drop what is remembered of a sequence."""
        self._memories.pop(sequence, None)
        self.acceptance.forget(sequence)

    def _continuation(self, sequence: Sequence, limit: int) -> list[int]:
        """What followed when the last tokens stood there before."""
        tokens = sequence.tokens
        memory = self._memories.setdefault(sequence, _Memory())
        for end in range(max(memory.seen, _GRAM), len(tokens)):
            memory.after[tuple(tokens[end - _GRAM : end])] = end
        memory.seen = len(tokens)
        start = memory.after.get(tuple(tokens[-_GRAM:]))
        if start is None or self.acceptance.is_poor(sequence):
            return []
        return tokens[start : start + limit]
