"""Draft tokens from a second, smaller model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import mlx.core as mx
from tinyllm_layers import PagedCache
from tinyllm_qwen.language_model import LanguageModel

from tinyllm_engine.request import RequestState
from tinyllm_engine.runner import Runner
from tinyllm_engine.schedule.step import Chunk, Step
from tinyllm_engine.speculative.draft_progress import DraftProgress
from tinyllm_engine.speculative.drafter import Acceptance

_FEW = 8
"""Missing tokens that are computed with the first draft token; more are prefilled before it."""


class DraftModel:
    """A small model that continues each text greedily. The large model verifies the continuation.

    Speculative decoding (Leviathan et al. 2023). The small model's keys and values are in pages of
    its own with the large model's numbers, so that block tables and the prefix cache serve both.
    It prefills prompts along with the large model. Tokens that it has not computed, because it was
    paused or because pages were read from a file, are computed before it proposes.

    Attributes:
        acceptance: the record of accepted tokens.
    """

    def __init__(
        self,
        model: LanguageModel,
        caches: Sequence[PagedCache],
        progress: DraftProgress,
        reserve: Callable[[RequestState, int], bool],
        *,
        vocab_size: int,
        prefill_tokens: int,
    ) -> None:
        """Refer to the parts of the engine.

        Args:
            model: the small model.
            caches: its pages, one cache a layer.
            progress: the record of the tokens computed in each page, still empty.
            reserve: allocates the pages for the first tokens of a request, if there are enough.
            vocab_size: the vocabulary size of the tokenizer; ids above it are never proposed.
            prefill_tokens: the most missing tokens that are computed in a step.
        """
        self.acceptance = Acceptance()
        self._runner = Runner(model, caches)
        self._progress = progress
        self._reserve = reserve
        self._rows = model.config.vocab_size
        self._vocab_size = vocab_size
        self._prefill_tokens = prefill_tokens
        # The end of the tokens that were computed for the latest drafts. Rejected draft tokens are
        # computed again for the next draft, or cut by a step without a draft.
        self._written: dict[RequestState, int] = {}

    def propose(self, limits: Mapping[RequestState, int]) -> None:
        """Continue all texts together, one token of each in a pass."""
        self._written.clear()
        wanted = [
            request
            for request, limit in limits.items()
            if not self.acceptance.is_paused(request)
            and self._reserve(request, len(request.tokens) + limit)
        ]
        ready = self._caught_up(wanted)
        for ahead in range(max((limits[request] for request in ready), default=0)):
            chunks = []
            for request in ready:
                if ahead < limits[request]:
                    start = self._start(request, ahead)
                    chunk = _chunk(request, start, len(request.tokens) + ahead)
                    # At once: another request that shares the pages must not compute them again.
                    self._progress.extend(request, chunk.start, chunk.stop)
                    chunks.append(chunk)
            logits = self._runner.decode(chunks)
            assert isinstance(logits, mx.array)
            tokens = mx.argmax(logits[:, : self._vocab_size], axis=-1).tolist()
            for chunk, token in zip(chunks, cast("list[int]", tokens), strict=True):
                chunk.request.draft.append(token)
                self._written[chunk.request] = chunk.stop

    def follow(self, step: Step) -> None:
        """Prefill the prompts of a step as well, and copy its pages."""
        for source, target in step.copies:
            self._progress.copy(source, target)
        self._runner.copy(step.copies)
        prefill = [
            chunk
            for chunk in step.prefill
            if self._progress.computed(chunk.request) == chunk.start and self._can_compute(chunk)
        ]
        for chunk in [*step.prefill, *step.decode]:
            start = max(chunk.start, self._written.get(chunk.request, 0))
            self._progress.cut(chunk.request, start, chunk.stop)
        self._prefill(prefill)

    def forget(self, request: RequestState) -> None:
        """Drop the state kept for a request."""
        self.acceptance.forget(request)

    def reset(self) -> None:
        """Forget the contents of all pages."""
        self._written.clear()
        self._progress.reset()

    def _start(self, request: RequestState, ahead: int) -> int:
        """Return the first position of a pass: the last draft token, or all that is missing."""
        return request.computed + ahead if ahead else self._progress.computed(request)

    def _caught_up(self, requests: Sequence[RequestState]) -> list[RequestState]:
        """Compute missing tokens; return the requests of which at most a few are missing."""
        budget, chunks = self._prefill_tokens, []
        for request in requests:
            start, stop = self._progress.computed(request), request.computed
            chunk = _chunk(request, start, min(stop, start + budget))
            if stop - start > _FEW and chunk.tokens and self._can_compute(chunk):
                chunks.append(chunk)
                budget -= len(chunk.tokens)
                self._progress.extend(request, chunk.start, chunk.stop)  # as in `propose`
        self._prefill(chunks)
        return [
            request
            for request in requests
            for start in [self._progress.computed(request)]
            if request.computed - start <= _FEW
            and self._can_compute(_chunk(request, start, len(request.tokens)))
        ]

    def _prefill(self, chunks: Sequence[Chunk]) -> None:
        if chunks:
            self._runner.prefill(chunks)
        for chunk in chunks:
            self._progress.extend(chunk.request, chunk.start, chunk.stop)

    def _can_compute(self, chunk: Chunk) -> bool:
        """Return True if the small model has the ids: padded vocabularies differ in size."""
        return max(chunk.tokens) < self._rows


def _chunk(request: RequestState, start: int, stop: int) -> Chunk:
    """Return a chunk after which one token is chosen."""
    return Chunk(request, start, stop, request.token_ids(start, stop), 1)
