"""The choice of tokens that a step computes. No tensors."""

from __future__ import annotations

from bisect import insort

from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.request import RequestState
from tinyllm_engine.schedule.step import Chunk, Step

PATIENCE = 64
"""Later requests that may overtake a request for each level of priority that they are ahead."""

DECODED_AGAIN = 64
"""The most tokens that a request decodes again in a step, after a preemption."""


class Scheduler:
    """Admits requests when there is memory for them, and limits the work of a step.

    Every step decodes a token of each request that is past its prompt, and prefills a limited
    number of prompt tokens: a long prompt never stalls requests that decode. Half of that number
    goes to the oldest prompt, the rest to the shortest ones: a short prompt does not wait for a
    long one, and no stream of short prompts starves a long one.

    Requests are ranked by arrival; a level of priority counts as `PATIENCE` arrivals. The first in
    rank is admitted first. When pages run out, the last in rank frees its pages, keeps its
    generated tokens, and waits again (preemption). Since a rank never changes, every request's
    turn comes.

    Attributes:
        pages: the allocation of pages.
        max_running: the most requests that hold pages.
        prefix_cache: True if requests share the pages of equal prefixes.
        preemptions: the number of preemptions so far.
    """

    def __init__(self, pages: BlockManager, max_running: int, *, prefix_cache: bool = True) -> None:
        """Start without requests."""
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
        """The requests with pages, the first in rank first."""
        return tuple(self._running)

    def add(self, request: RequestState) -> None:
        """Put a request into the queue."""
        insort(self._waiting, request, key=_rank)

    def remove(self, request: RequestState) -> None:
        """Remove a request, finished or not, and free its pages."""
        if request in self._running:
            self._running.remove(request)
            self._free(request)
        elif request in self._waiting:
            self._waiting.remove(request)

    def schedule(self, prefill_tokens: int) -> Step:
        """Choose the tokens of a step that prefills at most `prefill_tokens`."""
        copies = self._admit() if self._waiting else []
        decode = self._decode()
        prefill = self._prefill(prefill_tokens)
        # A request whose prompt ends in this step chooses a token in this step: it has the pages.
        ended = (chunk.request for chunk in prefill if chunk.stop == chunk.request.prefill_end)
        decode += [_decode_chunk(request, request.prefill_end) for request in ended]
        return Step(prefill, decode, copies)

    def update(self, request: RequestState, computed: int) -> None:
        """Record that the first `computed` tokens are in the pages; register the full pages."""
        page_size = self.pages.page_size
        if self.prefix_cache:
            full = range(request.computed // page_size, computed // page_size)
            hashes = request.block_hashes(page_size) if full else []
            for index in full:
                self.pages.register(request.pages[index], hashes[index])
        request.computed = computed

    def reserve(self, request: RequestState, length: int) -> bool:
        """Allocate the pages for the first `length` tokens; return False if there are too few."""
        if length <= len(request.pages) * self.pages.page_size:
            return True
        needed = self.pages.pages_for(length) - len(request.pages)
        if needed > self.pages.available:
            return False
        request.pages += self.pages.allocate(needed)
        return True

    def reset(self) -> list[RequestState]:
        """Put all running requests back into the queue, and forget the contents of all pages.

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
        """Give pages to waiting requests, in rank; return the pages to copy for it."""
        copies: list[tuple[int, int]] = []
        coming = self._coming()
        for request in tuple(self._waiting):
            if len(self._running) >= self.max_running:
                break
            hashes = request.block_hashes(self.pages.page_size) if self.prefix_cache else []
            found = self.pages.find(hashes)
            if len(found) < len(hashes) and hashes[len(found)] in coming:
                continue  # a running request is computing the next page: wait for it and share it
            if not self._allocate(request, found, copies):
                break
            self._waiting.remove(request)
            insort(self._running, request, key=_rank)
            coming.update(hashes[len(found) :])
        return copies

    def _coming(self) -> set[bytes]:
        """Return the block hashes of the pages that are being prefilled."""
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
        """Share the pages found, and allocate the rest; return False if there are too few."""
        pages, length = self.pages, len(request.tokens)
        pages.acquire(found)
        # The last token goes through the model in any case, to choose the next. Where its page is
        # known too, it is written into a copy, because other requests read the original.
        copied = found.pop() if len(found) * pages.page_size == length else None
        needed = pages.pages_for(length) - len(found)
        reserve = len(self._running)  # each of them may need one more soon
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
        """Return a chunk for each request that decodes, with the pages for it allocated."""
        chunks: list[Chunk] = []
        for request in tuple(self._running):
            if not request.pages or request.is_prefilling:  # without pages: preempted just now
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
        """Divide the prefill budget among the prompts."""
        prefilling = [request for request in self._running if request.is_prefilling]
        if not prefilling:
            return []
        oldest, *others = prefilling
        others.sort(key=_left)
        lengths = {oldest: min(_left(oldest), budget - budget // 2 if others else budget)}
        budget -= lengths[oldest]
        for request in others:
            lengths[request] = min(_left(request), budget)
            budget -= lengths[request]
        lengths[oldest] += min(_left(oldest) - lengths[oldest], budget)
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
    """Return the rank of a request; the lowest is admitted first."""
    return request.arrival + PATIENCE * request.request.priority


def _left(request: RequestState) -> int:
    """Return the number of tokens still to be prefilled."""
    return request.prefill_end - request.computed


def _decode_chunk(request: RequestState, start: int) -> Chunk:
    """Return the tokens that a request decodes next, from position `start` on."""
    own, draft = len(request.tokens), len(request.draft)
    stop = min(own + draft, start + max(DECODED_AGAIN, 1 + draft))
    choices = max(0, stop - own + 1)
    return Chunk(request, start, stop, request.token_ids(start, stop), choices)
