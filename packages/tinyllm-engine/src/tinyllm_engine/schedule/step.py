"""What one step computes."""

from __future__ import annotations

from dataclasses import dataclass, field

from tinyllm_engine.sequence import Sequence


@dataclass(frozen=True)
class Chunk:
    """Tokens of a sequence that go through the model together.

    Attributes:
        sequence: whose they are.
        start: the first of them, which is the first that is not computed.
        stop: where they end; beyond the sequence's own tokens come those of its draft.
    """

    sequence: Sequence
    start: int
    stop: int

    @property
    def length(self) -> int:
        """Tokens in the chunk."""
        return self.stop - self.start

    @property
    def tokens(self) -> list[int]:
        """Their ids."""
        sequence = self.sequence
        known = sequence.tokens[self.start : self.stop]
        first = max(0, self.start - len(sequence.tokens))
        return known + sequence.draft[first : self.drafts]

    @property
    def drafts(self) -> int:
        """How many of them are guesses."""
        return max(0, self.stop - len(self.sequence.tokens))

    @property
    def chooses(self) -> bool:
        """Whether a token is chosen after it."""
        return self.stop >= len(self.sequence.tokens)


@dataclass(frozen=True)
class Plan:
    """One step: prompts are prefilled on one axis, tokens decoded on another.

    Attributes:
        prefill: chunks of prompts.
        decode: the last tokens of sequences, with their drafts, or tokens to be decoded again.
        copies: pages to be copied first, (from, to): their holders are about to write.
    """

    prefill: list[Chunk] = field(default_factory=list)
    decode: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self.prefill or self.decode)
