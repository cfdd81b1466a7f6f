"""Guesses from what the text has said before: speculation without a second model."""

from __future__ import annotations

from dataclasses import dataclass, field

from tinyllm_engine.sequence import Sequence

_GRAM = 3
"""Tokens that must have stood before a guess. Two match too much, four too little."""

_POOR = 0.3
"""The share of right guesses below which guessing costs more than it brings."""

_PAUSE = 32
"""Tokens without guesses after that."""


@dataclass
class _Memory:
    """Where each run of tokens was seen last, and how guesses went."""

    after: dict[tuple[int, ...], int] = field(default_factory=dict)
    seen: int = 0
    quality: float = 1.0
    resume_at: int = 0


class PromptLookup:
    """When the last tokens stood in the text before, what followed them may follow again.

    Prompt lookup decoding (Saxena 2023): code that is edited, text that is quoted or summed up.
    Each guess is computed beside the last token and kept only if it is what would have been chosen;
    a sequence whose guesses are poor goes on without for a while.

    Attributes:
        longest: tokens guessed at a time at most; 0 is none at all.
        drafted: tokens guessed so far.
        accepted: how many of them were right.
    """

    def __init__(self, longest: int) -> None:
        """Start without memories."""
        self.longest = longest
        self.drafted = 0
        self.accepted = 0
        self._memories: dict[Sequence, _Memory] = {}

    def guess(self, sequence: Sequence, limit: int) -> None:
        """Give a sequence a draft of at most `limit` tokens, if something like it was said."""
        sequence.draft.clear()
        tokens = sequence.tokens
        if min(self.longest, limit) < 1 or sequence.computed != len(tokens) - 1:
            return
        memory = self._memories.setdefault(sequence, _Memory())
        for end in range(max(memory.seen, _GRAM), len(tokens)):
            memory.after[tuple(tokens[end - _GRAM : end])] = end
        memory.seen = len(tokens)
        start = memory.after.get(tuple(tokens[-_GRAM:]))
        if start is not None and len(tokens) >= memory.resume_at:
            sequence.draft[:] = tokens[start : start + min(self.longest, limit)]

    def judge(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Learn how many tokens of a draft were right."""
        if not drafted:
            return
        self.drafted += drafted
        self.accepted += accepted
        memory = self._memories[sequence]
        memory.quality += (accepted / drafted - memory.quality) / 4
        if memory.quality < _POOR:
            memory.quality, memory.resume_at = 2 * _POOR, len(sequence.tokens) + _PAUSE

    def forget(self, sequence: Sequence) -> None:
        """Drop what is remembered of a sequence."""
        self._memories.pop(sequence, None)
