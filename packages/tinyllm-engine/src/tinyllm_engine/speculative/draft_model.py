"""Draft tokens from a second, smaller model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import mlx.core as mx
from tinyllm_qwen.tolist import ints

from tinyllm_engine.request import RequestState
from tinyllm_engine.runner import Runner
from tinyllm_engine.schedule.step import Chunk, Step
from tinyllm_engine.speculative.draft_progress import DraftProgress
from tinyllm_engine.speculative.drafter import Drafter

_MAX_DECODED = 8
"""The most missing tokens that are decoded together with the first draft token. If more tokens are
missing, they are prefilled first."""


class DraftModel(Drafter):
    """A small model that continues each text greedily (Leviathan et al. 2023).

    The large model verifies the continuation. The small model has pages of its own for keys and
    values, with the same page numbers as the large model, so that both models share block tables
    and prefix cache. The small model prefills each prompt in the same steps as the large model. The
    pages of the small model may lack tokens, because drafting was paused or because pages were read
    from a file. The missing tokens are computed before the next draft tokens.
    """

    def __init__(
        self,
        runner: Runner,
        reserve: Callable[[RequestState, int], bool],
        *,
        draft_vocab_size: int,
        vocab_size: int,
        max_num_batched_tokens: int,
    ) -> None:
        """Make a drafter.

        Args:
            runner: the runner of the small model and its pages.
            reserve: allocates pages for the first tokens of a request: see `Scheduler.reserve`.
            draft_vocab_size: the vocabulary size of the small model.
            vocab_size: the vocabulary size of the tokenizer. Larger ids are never proposed.
            max_num_batched_tokens: the most missing tokens that are prefilled in a step.
        """
        self._runner = runner
        self._progress = DraftProgress(runner.num_pages, runner.page_size)
        self._reserve = reserve
        self._draft_vocab_size = draft_vocab_size
        self._vocab_size = vocab_size
        self._prefill_tokens = max_num_batched_tokens
        # The end position of the tokens computed for the latest draft of each request. If draft
        # tokens are rejected, their positions are computed again for the next draft, or removed
        # from the record by a step without a draft.
        self._written: dict[RequestState, int] = {}

    def propose(self, limits: Mapping[RequestState, int]) -> None:
        """Append draft tokens to the requests, one token of every request in each pass."""
        self._written.clear()
        wanted = [
            request
            for request, limit in limits.items()
            if self._reserve(request, len(request.tokens) + limit)
        ]
        ready = self._catch_up(wanted)
        for ahead in range(max((limits[request] for request in ready), default=0)):
            chunks = []
            for request in ready:
                if ahead < limits[request]:
                    start = self._start(request, ahead)
                    chunk = _chunk(request, start, len(request.tokens) + ahead)
                    # Record the tokens before the pass: another request of the same pass may share
                    # the pages, and must not compute them again.
                    self._progress.extend(request, chunk.start, chunk.stop)
                    chunks.append(chunk)
            logits = self._runner.decode(chunks)
            assert isinstance(logits, mx.array)
            tokens = mx.argmax(logits[:, : self._vocab_size], axis=-1)
            for chunk, token in zip(chunks, ints(tokens), strict=True):
                chunk.request.draft_tokens.append(token)
                self._written[chunk.request] = chunk.stop

    def prepare(self, step: Step) -> None:
        """Copy the same pages as the step, and prefill the prompts that it will continue."""
        for source, target in step.copies:
            self._progress.copy(source, target)
        self._runner.copy(step.copies)
        prefill = [
            chunk
            for chunk in step.prefill
            if chunk.request.generates
            and self._progress.computed(chunk.request) == chunk.start
            and self._can_compute(chunk)
        ]
        for chunk in [*step.prefill, *step.decode]:
            start = max(chunk.start, self._written.get(chunk.request, 0))
            self._progress.cut(chunk.request, start, chunk.stop)
        self._prefill(prefill)

    def reset(self) -> None:
        """Record that all pages are empty."""
        self._written.clear()
        self._progress.reset()

    def _start(self, request: RequestState, ahead: int) -> int:
        """Return the first position that a pass computes for a request.

        The first pass starts at the first missing token, later passes at the last draft token.
        """
        return request.num_computed_tokens + ahead if ahead else self._progress.computed(request)

    def _catch_up(self, requests: Sequence[RequestState]) -> list[RequestState]:
        """Prefill missing tokens; return the requests that miss at most `_MAX_DECODED` tokens."""
        budget, chunks = self._prefill_tokens, []
        for request in requests:
            start, stop = self._progress.computed(request), request.num_computed_tokens
            chunk = _chunk(request, start, min(stop, start + budget))
            if stop - start > _MAX_DECODED and chunk.tokens and self._can_compute(chunk):
                chunks.append(chunk)
                budget -= len(chunk.tokens)
                self._progress.extend(request, chunk.start, chunk.stop)  # as in `propose`
        self._prefill(chunks)
        return [
            request
            for request in requests
            for start in [self._progress.computed(request)]
            if request.num_computed_tokens - start <= _MAX_DECODED
            and self._can_compute(_chunk(request, start, len(request.tokens)))
        ]

    def _prefill(self, chunks: Sequence[Chunk]) -> None:
        if chunks:
            unscored = [replace(chunk, num_samples=0, is_scored=False) for chunk in chunks]
            self._runner.prefill(unscored)
        for chunk in chunks:
            self._progress.extend(chunk.request, chunk.start, chunk.stop)

    def _can_compute(self, chunk: Chunk) -> bool:
        """Return True if the small model has all ids of a chunk.

        The padded vocabularies of the two models may differ in size.
        """
        return max(chunk.tokens) < self._draft_vocab_size


def _chunk(request: RequestState, start: int, stop: int) -> Chunk:
    """Return a chunk after which one token is chosen."""
    return Chunk(request, start, stop, request.token_ids(start, stop), 1)
