"""Guesses from a second, smaller model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx
from tinyllm_layers import PagedCache
from tinyllm_qwen import Qwen

from tinyllm_engine.runner import Runner
from tinyllm_engine.schedule.step import Chunk, Plan
from tinyllm_engine.sequence import Sequence as Tokens
from tinyllm_engine.speculative.acceptance import Acceptance
from tinyllm_engine.speculative.coverage import Coverage

_FEW = 8
"""Tokens that are caught up with beside the first guess; more are prefilled before it."""


class DraftModel:
    """A small model continues each text greedily, and the large one looks at all of it at once.

    Speculative decoding (Leviathan et al. 2023). The small model's keys and values are in pages of
    their own with the large one's numbers, so that block tables and the prefix cache serve both.
    It computes prompts along with the large model. What it has not computed, because it did not
    guess for a while or because pages were read from a file, it catches up with before it guesses.

    Attributes:
        acceptance: how guesses went.
    """

    def __init__(
        self,
        model: Qwen,
        caches: Sequence[PagedCache],
        coverage: Coverage,
        room: Callable[[Tokens, int], bool],
        *,
        vocab_size: int,
        prefill_tokens: int,
    ) -> None:
        """Hold the parts.

        Args:
            model: the small model.
            caches: its pages, one cache a layer.
            coverage: what is in them: nothing yet.
            room: gets a sequence the pages for so many tokens, if there are enough.
            vocab_size: of the tokenizer; ids above it are never guessed.
            prefill_tokens: tokens that are caught up with at most before a guess.
        """
        self.acceptance = Acceptance()
        self._runner = Runner(model, caches)
        self._coverage = coverage
        self._room = room
        self._rows = model.config.vocab_size
        self._vocab_size = vocab_size
        self._prefill_tokens = prefill_tokens
        # Where the tokens end that were computed for the latest guess. Those that were wrong are
        # computed anew for the next one, or cut by a plan that goes on without.
        self._written: dict[Tokens, int] = {}

    def guess(self, limits: Mapping[Tokens, int]) -> None:
        """Continue all texts together, a token of each in a pass."""
        self._written.clear()
        wanted = [
            sequence
            for sequence, limit in limits.items()
            if not self.acceptance.is_poor(sequence)
            and self._room(sequence, len(sequence.tokens) + limit)
        ]
        ready = self._caught_up(wanted)
        for ahead in range(max((limits[sequence] for sequence in ready), default=0)):
            chunks = [
                Chunk(sequence, self._start(sequence, ahead), len(sequence.tokens) + ahead)
                for sequence in ready
                if ahead < limits[sequence]
            ]
            logits = self._runner.decode(chunks)[:, : self._vocab_size]
            guesses = [int(token) for token in mx.argmax(logits, axis=-1)]
            for chunk, guess in zip(chunks, guesses, strict=True):
                chunk.sequence.draft.append(guess)
                self._coverage.extend(chunk.sequence, chunk.start, chunk.stop)
                self._written[chunk.sequence] = chunk.stop

    def follow(self, plan: Plan) -> None:
        """Compute the prompts of a plan as well, and copy its pages."""
        for source, target in plan.copies:
            self._coverage.copy(source, target)
        self._runner.copy(plan.copies)
        prefill = [
            chunk
            for chunk in plan.prefill
            if self._coverage.reach(chunk.sequence) == chunk.start and self._can_compute(chunk)
        ]
        for chunk in [*plan.prefill, *plan.decode]:
            start = max(chunk.start, self._written.get(chunk.sequence, 0))
            self._coverage.cut(chunk.sequence, start, chunk.stop)
        self._prefill(prefill)

    def judge(self, sequence: Tokens, drafted: int, accepted: int) -> None:
        """Learn how many tokens of a draft were right."""
        self.acceptance.judge(sequence, drafted, accepted)

    def forget(self, sequence: Tokens) -> None:
        """Drop what is remembered of a sequence."""
        self.acceptance.forget(sequence)

    def _start(self, sequence: Tokens, ahead: int) -> int:
        """The first token of a pass: the last guess, or before any all that is not computed."""
        return sequence.computed + ahead if ahead else self._coverage.reach(sequence)

    def _caught_up(self, sequences: Sequence[Tokens]) -> list[Tokens]:
        """Compute what is missing, and give those of which hardly anything is."""
        budget, chunks = self._prefill_tokens, []
        for sequence in sequences:
            start, stop = self._coverage.reach(sequence), sequence.computed
            chunk = Chunk(sequence, start, min(stop, start + budget))
            if stop - start > _FEW and chunk.length and self._can_compute(chunk):
                chunks.append(chunk)
                budget -= chunk.length
        self._prefill(chunks)
        return [
            sequence
            for sequence in sequences
            for start in [self._coverage.reach(sequence)]
            if sequence.computed - start <= _FEW
            and self._can_compute(Chunk(sequence, start, len(sequence.tokens)))
        ]

    def _prefill(self, chunks: Sequence[Chunk]) -> None:
        if chunks:
            self._runner.prefill(chunks)
        for chunk in chunks:
            self._coverage.extend(chunk.sequence, chunk.start, chunk.stop)

    def _can_compute(self, chunk: Chunk) -> bool:
        """Whether the small model has its ids: rows that pad a vocabulary differ in number."""
        return max(chunk.tokens) < self._rows
