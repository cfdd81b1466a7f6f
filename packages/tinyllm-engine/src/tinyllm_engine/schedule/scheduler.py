"""The scheduler, which admits requests and chooses the tokens of each step, without tensors."""

from __future__ import annotations

from bisect import insort

from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.request import RequestState
from tinyllm_engine.schedule.step import Chunk, Step

PATIENCE = 64
"""The number of arrivals that one level of priority counts as. It limits how many later requests
with a better priority can overtake a request."""

DECODED_AGAIN = 64
"""After a preemption, the most generated tokens that a request decodes again in one step."""


class Scheduler:
    """Admits requests if there are enough pages, and limits the prompt tokens of a step.

    Every step decodes a token of each request that has finished its prefill, and prefills a limited
    number of prompt tokens, so that a long prompt does not stall decoding. Half of the prompt
    tokens go to the prompt of the first request in rank, the rest to the shortest other prompts. A
    short prompt therefore does not wait for a long prompt, and short prompts do not starve a long
    prompt.

    Requests are ranked by arrival, and a level of priority counts as `PATIENCE` arrivals. Requests
    are admitted in the order of their ranks. If pages run out, the request with the last rank is
    preempted: it frees its pages, keeps its generated tokens, and waits again. A rank never
    changes, so every request is computed eventually.

    Attributes:
        pages: the allocation of pages.
        max_running: the largest number of requests that hold pages.
        prefix_cache: True if requests share the pages of equal prefixes.
        preemptions: the number of preemptions so far.
    """

    def __init__(self, pages: BlockManager, max_running: int, *, prefix_cache: bool = True) -> None:
        """Make a scheduler without requests."""
        self.pages = pages
        self.max_running = max_running
        self.prefix_cache = prefix_cache
        self.preemptions = 0
        self._waiting: list[RequestState] = []
        self._running: list[RequestState] = []

    @property
    def has_requests(self) -> bool:
        """True while a request waits or runs."""
        return bool(self._waiting or self._running)

    @property
    def waiting(self) -> int:
        """The number of requests without pages."""
        return len(self._waiting)

    @property
    def running(self) -> tuple[RequestState, ...]:
        """The requests that hold pages, in the order of their ranks."""
        return tuple(self._running)

    def add(self, request: RequestState) -> None:
        """Put a request into the queue."""
        insort(self._waiting, request, key=_rank)

    def remove(self, request: RequestState) -> None:
        """Remove a request that has ended or was cancelled, and free its pages."""
        if request in self._running:
            self._running.remove(request)
            self._free(request)
        elif request in self._waiting:
            self._waiting.remove(request)

    def schedule(self, prefill_tokens: int) -> Step:
        """Choose the tokens of the next step, with at most `prefill_tokens` prompt tokens."""
        copies = self._admit() if self._waiting else []
        decode = self._decode()
        prefill = self._prefill(prefill_tokens)
        # A request whose prefill ends in this step also decodes the last token of its prompt. The
        # page for that token was allocated at the admission.
        ended = (chunk.request for chunk in prefill if chunk.stop == chunk.request.prefill_end)
        decode += [_decode_chunk(request, request.prefill_end) for request in ended]
        return Step(prefill, decode, copies)

    def update(self, request: RequestState, computed: int) -> None:
        """Record that the first `computed` tokens are in the pages, and register full pages."""
        page_size = self.pages.page_size
        if self.prefix_cache:
            full = range(request.computed // page_size, computed // page_size)
            hashes = request.block_hashes(page_size) if full else []
            for index in full:
                self.pages.register(request.pages[index], hashes[index])
        request.computed = computed

    def reserve(self, request: RequestState, length: int) -> bool:
        """Allocate pages for the first `length` tokens of a request.

        Returns:
            False if too few pages are available. No page is then allocated.
        """
        if length <= len(request.pages) * self.pages.page_size:
            return True
        needed = self.pages.pages_for(length) - len(request.pages)
        if needed > self.pages.available:
            return False
        request.pages += self.pages.allocate(needed)
        return True

    def reset(self) -> list[RequestState]:
        """Put all running requests back into the queue, and free all pages.

        The prefix cache is empty afterwards.

        Returns:
            The requests that were running.
        """
        running, self._running = self._running, []
        self.pages.reset()
        for request in running:
            _forget_pages(request)
            insort(self._waiting, request, key=_rank)
        return running

    def _admit(self) -> list[tuple[int, int]]:
        """Allocate pages for waiting requests, in the order of their ranks.

        Returns:
            The pages to copy before the step, as pairs of source and target.
        """
        copies: list[tuple[int, int]] = []
        in_progress = self._hashes_in_progress()
        for request in tuple(self._waiting):
            if len(self._running) >= self.max_running:
                break
            hashes = request.block_hashes(self.pages.page_size) if self.prefix_cache else []
            found = self.pages.find(hashes)
            if len(found) < len(hashes) and hashes[len(found)] in in_progress:
                continue  # a running request computes the next page: wait, then share the page
            if not self._allocate(request, found, copies):
                break
            self._waiting.remove(request)
            insort(self._running, request, key=_rank)
            in_progress.update(hashes[len(found) :])
        return copies

    def _hashes_in_progress(self) -> set[bytes]:
        """Return the block hashes of the pages that running requests will prefill."""
        if not self.prefix_cache:
            return set()
        size = self.pages.page_size
        prefilling = (request for request in self._running if request.is_prefilling)
        return {
            block_hash
            for request in prefilling
            for block_hash in request.block_hashes(size)[request.computed // size :]
        }

    def _allocate(
        self, request: RequestState, found: list[int], copies: list[tuple[int, int]]
    ) -> bool:
        """Allocate the pages of a request that is admitted.

        Args:
            request: the request.
            found: registered pages with the first tokens of the request, which shares the pages.
            copies: the list to which a page to copy is appended.

        Returns:
            False if too few pages are available. The request is then unchanged.
        """
        pages, length = self.pages, len(request.tokens)
        pages.acquire(found)
        # The last token is always computed, to choose the next token. If the page of the last token
        # is shared, the token is written into a copy of the page, because other requests read it.
        copied = found.pop() if len(found) * pages.page_size == length else None
        needed = pages.pages_for(length) - len(found)
        reserve = len(self._running)  # each running request may soon need one more page
        if needed + reserve > pages.available:
            pages.free(found if copied is None else [*found, copied])
            return False
        allocated = pages.allocate(needed)
        request.computed = len(found) * pages.page_size
        if copied is not None:
            copies.append((copied, allocated[0]))
            pages.free([copied])
            request.computed = length - 1
        request.pages = found + allocated
        if request.cached is None:
            request.cached = request.computed
        return True

    def _decode(self) -> list[Chunk]:
        """Return a chunk for each request that decodes, and allocate the pages of the chunks.

        If pages run out, draft tokens are dropped first, and then requests are preempted.
        """
        chunks: list[Chunk] = []
        for request in tuple(self._running):
            if not request.pages or request.is_prefilling:  # no pages: preempted in this loop
                continue
            chunk = _decode_chunk(request, request.computed)
            if not self.reserve(request, chunk.stop):
                request.draft.clear()
                chunk = _decode_chunk(request, request.computed)
                while not self.reserve(request, chunk.stop):
                    self._preempt(self._running[-1])
                    if not request.pages:
                        break
            if request.pages:
                chunks.append(chunk)
        return chunks

    def _prefill(self, budget: int) -> list[Chunk]:
        """Divide `budget` tokens between the prompts; return the chunks to prefill."""
        prefilling = [request for request in self._running if request.is_prefilling]
        if not prefilling:
            return []
        oldest, *others = prefilling
        others.sort(key=_remaining)
        lengths = {oldest: min(_remaining(oldest), budget - budget // 2 if others else budget)}
        budget -= lengths[oldest]
        for request in others:
            lengths[request] = min(_remaining(request), budget)
            budget -= lengths[request]
        lengths[oldest] += min(_remaining(oldest) - lengths[oldest], budget)
        return [
            Chunk(request, start, start + length, request.token_ids(start, start + length))
            for request, length in lengths.items()
            for start in [request.computed]
            if length
        ]

    def _preempt(self, request: RequestState) -> None:
        """Free the pages of a request, and put it back into the queue."""
        self.preemptions += 1
        self._running.remove(request)
        self._free(request)
        insort(self._waiting, request, key=_rank)

    def _free(self, request: RequestState) -> None:
        self.pages.free(request.pages)
        _forget_pages(request)


def _forget_pages(request: RequestState) -> None:
    request.pages = []
    request.computed = 0
    request.draft.clear()


def _rank(request: RequestState) -> int:
    """Return the rank of a request. The request with the lowest rank is admitted first."""
    return request.arrival + PATIENCE * request.request.priority


def _remaining(request: RequestState) -> int:
    """Return the number of prompt tokens that are not prefilled yet."""
    return request.prefill_end - request.computed


def _decode_chunk(request: RequestState, start: int) -> Chunk:
    """Return the tokens that a request decodes next, from position `start` on."""
    own, draft = len(request.tokens), len(request.draft)
    stop = min(own + draft, start + max(DECODED_AGAIN, 1 + draft))
    choices = max(0, stop - own + 1)
    return Chunk(request, start, stop, request.token_ids(start, stop), choices)
