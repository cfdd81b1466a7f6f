"""How often guesses are right."""

from __future__ import annotations

from dataclasses import dataclass

from tinyllm_engine.sequence import Sequence

_POOR = 0.3
"""The share of right guesses below which guessing costs more than it brings."""

_PAUSE = 32
"""Tokens without guesses after that."""


@dataclass
class _Record:
    """How guesses at one sequence went, the latest counting most, and when to try again."""

    quality: float = 1.0
    resume_at: int = 0


class Acceptance:
    """Remembers of each sequence how guesses went: where they are poor, it goes on without a while.

    Attributes:
        drafted: tokens guessed so far.
        accepted: how many of them were right.
    """

    def __init__(self) -> None:
        """Expect the best."""
        self.drafted = 0
        self.accepted = 0
        self._records: dict[Sequence, _Record] = {}

    def is_poor(self, sequence: Sequence) -> bool:
        """Whether it is better not to guess now."""
        record = self._records.get(sequence)
        return record is not None and len(sequence.tokens) < record.resume_at

    def judge(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Learn how many tokens of a draft were right."""
        if not drafted:
            return
        self.drafted += drafted
        self.accepted += accepted
        record = self._records.setdefault(sequence, _Record())
        record.quality += (accepted / drafted - record.quality) / 4
        if record.quality < _POOR:
            record.quality, record.resume_at = 2 * _POOR, len(sequence.tokens) + _PAUSE

    def forget(self, sequence: Sequence) -> None:
        """Drop what is remembered of a sequence."""
        self._records.pop(sequence, None)
