"""The scheduler, which admits requests and chooses the tokens of each step, without tensors."""

from bisect import insort
from collections.abc import Sequence

from tinyllm_engine.errors import EngineFullError
from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.request import RequestState
from tinyllm_engine.schedule.prefix_lookup import PrefixLookup
from tinyllm_engine.schedule.prompt_tokens import divide_scored
from tinyllm_engine.schedule.state_slots import StateSlots
from tinyllm_engine.schedule.step import Chunk, Step
from tinyllm_engine.schedule.tenant_quotas import TenantQuotas, by_tenant, last_of
from tinyllm_engine.schedule.tenant_time import TenantTime

PATIENCE = 64
"""The number of arrivals that one level of priority counts as. It limits how many later requests
with a better priority can overtake a request."""

DECODED_AGAIN = 64
"""The most generated tokens that a step decodes again after preemptions or a failed step, in
addition to one token of each request. It limits the pause of the requests that decode."""


class Scheduler:
    """Admits requests if there are enough pages, and limits the prompt tokens of a step.

    Every step decodes a token of each request that has finished its prefill, and prefills a limited
    number of prompt tokens, so that a long prompt does not stall decoding. `divide_scored` divides
    these tokens between the prompts.

    Tenants share the engine's time as `TenantTime` describes. They share the seats (the
    `max_num_seqs` places among the running requests) and the pages as `TenantQuotas` describes. The
    queue order of the requests is their order of arrival, and a level of priority
    counts as `PATIENCE` arrivals. A tenant's requests are admitted in queue order, but groups of
    requests take turns. If pages run out, the last request in queue order of the tenant that uses
    most pages is preempted: it frees its pages, keeps its generated tokens, and waits again. Queue
    order never changes, so every request of a tenant is computed eventually.

    Attributes:
        block_manager: the allocation of pages.
        max_num_seqs: the largest number of requests that hold pages.
        states: the slots of recurrent state; None for models without recurrent layers.
        enable_prefix_caching: True if requests share the pages of equal prefixes.
        preemptions: the number of preemptions so far.
        prompt_tokens: the number of prompt tokens of all admitted requests so far.
        cached_tokens: the number of these that were in the prefix cache.
        served: the running requests that the latest step serves; empty before it chooses them, and
            once a request has ended.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        max_num_seqs: int,
        states: StateSlots | None = None,
        *,
        enable_prefix_caching: bool = True,
    ) -> None:
        """Make a scheduler without requests."""
        self.block_manager = block_manager
        self.states = states
        self.max_num_seqs = max_num_seqs if states is None else min(max_num_seqs, states.capacity)
        self.enable_prefix_caching = enable_prefix_caching
        self.preemptions = self.prompt_tokens = self.cached_tokens = 0
        self.served: tuple[RequestState, ...] = ()
        self._suspect_next = True  # True if the next step serves a suspect; see `choose_served`
        self._time = TenantTime()
        self._is_shared = False  # True if the running requests belong to several tenants
        self._may_admit = False  # True if a request or a page came or went since the last admission
        self._waiting: list[RequestState] = []
        self._running: list[RequestState] = []
        self._copies: dict[int, int] = {}  # the source of each page to copy before the next step

    @property
    def has_requests(self) -> bool:
        """True while a request waits or runs."""
        return bool(self._waiting or self._running)

    def has(self, request: RequestState) -> bool:
        """Return True if a request waits or runs."""
        return request in self._waiting or request in self._running

    @property
    def waiting(self) -> int:
        """The number of requests without pages."""
        return len(self._waiting)

    @property
    def running(self) -> tuple[RequestState, ...]:
        """The requests that hold pages, in queue order."""
        return tuple(self._running)

    def choose_served(self) -> tuple[RequestState, ...]:
        """Choose the tenants that the next step serves; return their running requests.

        After a failed step, each of its requests is a suspect until it gets a token. Every second
        step serves one suspect alone, and the other steps serve the other requests. The request
        that makes a step fail therefore fails alone, and no other request fails with it again.

        The call updates the virtual times of tenants that have come or gone. It may be called twice
        a step: a drafter needs the requests before `schedule` has admitted others.
        """
        weights = {each.tenant: each.weight for each in self._running}
        self._is_shared = len(weights) > 1
        throttled = self._time.choose_throttled(weights) if self._is_shared else ()
        served = [each for each in self._running if each.tenant not in throttled]
        suspects = [each for each in served if each.is_suspect]
        others = [each for each in served if not each.is_suspect]
        is_alone = suspects and (self._suspect_next or not others)
        self.served = tuple(suspects[:1] if is_alone else others)
        return self.served

    def charge_prefill(self, chunks: Sequence[Chunk], seconds: float) -> None:
        """Divide the time of a prefill pass between the tenants, if there are several."""
        if self._is_shared:
            self._time.charge_prefill(chunks, seconds)

    def charge_decode(self, chunks: Sequence[Chunk], seconds: float) -> None:
        """Divide the time of a decode pass between the tenants, if there are several."""
        if self._is_shared:
            self._time.charge_decode(chunks, seconds)

    def charge_requests(self, requests: Sequence[RequestState], seconds: float) -> None:
        """Divide time, such as that of a drafter, between the tenants of some requests."""
        if self._is_shared:
            self._time.charge_requests(requests, seconds)

    def displaced_by(self, tenant: str, max_waiting: int) -> RequestState | None:
        """Return the request whose place in a full queue a tenant takes.

        The result is the last request in queue order, without a generated token, of the tenant with
        the longest queue. It is None if fewer than `max_waiting` requests wait. Requests that will
        take a free seat, a place among the running requests, do not count. So many requests can be
        added between two steps.

        Raises:
            EngineFullError: if no queue is longer than the queue of `tenant` will be.
        """
        if self.waiting + len(self._running) < max_waiting + self.max_num_seqs:
            return None
        num_waiting = sum(each.tenant == tenant for each in self._waiting)
        queues = by_tenant(each for each in self._waiting if not each.generated)
        longest = max(queues.values(), key=len, default=[])
        if len(longest) <= 1 + num_waiting:
            remedy = "call step(), or raise EngineSettings.max_waiting"
            raise EngineFullError(self.waiting, remedy=remedy)
        return longest[-1]

    def add(self, request: RequestState) -> None:
        """Put a request into the queue."""
        self._may_admit = True
        insort(self._waiting, request, key=_queue_key)

    def remove(self, request: RequestState) -> None:
        """Remove a request that has ended or was cancelled, and free its pages."""
        self._may_admit = True
        self.served = ()  # so that no ended request is kept
        if request in self._running:
            self._running.remove(request)
            self._free(request)
        elif request in self._waiting:
            self._waiting.remove(request)

    def schedule(self, prefill_tokens: int, prefill_tokens_alone: int | None = None) -> Step:
        """Choose the tokens of the next step.

        Args:
            prefill_tokens: the most prompt tokens of a step.
            prefill_tokens_alone: the most prompt tokens of a step while no request decodes; None
                for `prefill_tokens`.
        """
        self._copies, self.served = {}, ()
        if self._waiting and self._may_admit:
            self._may_admit = False
            self._admit()
        served = self.choose_served()
        self._suspect_next = not self._suspect_next
        for request in set(self._running).difference(served):
            request.draft_tokens.clear()
        decode = self._decode_chunks(served)
        if prefill_tokens_alone is not None and all(each.is_prefilling for each in self._running):
            prefill_tokens = prefill_tokens_alone
        prefill = self._prefill_chunks(served, prefill_tokens)
        copies = [(source, target) for target, source in self._copies.items()]
        return Step(prefill, decode, copies)

    def update(self, request: RequestState, computed: int) -> None:
        """Record that the first `computed` tokens are in the pages, and register full pages."""
        page_size = self.block_manager.page_size
        if self.states is not None:
            self.states.update(request, computed)
        if self.enable_prefix_caching:
            end = computed if self.states is None else min(computed, request.num_prompt_tokens)
            full = range(request.num_computed_tokens // page_size, end // page_size)
            hashes = request.block_hashes(page_size) if full else []
            self._may_admit |= bool(full)
            for index in full:
                self.block_manager.register(request.block_table[index], hashes[index])
        request.num_computed_tokens = computed

    def reserve(self, request: RequestState, length: int) -> bool:
        """Allocate pages for the first `length` tokens of a request.

        Returns:
            False if too few pages are available. No page is then allocated.
        """
        if length <= len(request.block_table) * self.block_manager.page_size:
            return True
        needed = self.block_manager.pages_for(length) - len(request.block_table)
        if needed > self.block_manager.available:
            return False
        request.block_table += self.block_manager.allocate(needed)
        return True

    def reset(self) -> list[RequestState]:
        """Put all running requests back into the queue, and free all pages.

        The prefix cache is empty afterwards. Ctrl-C may have interrupted any method before, this
        one too, so a running request may have ended, or be in the queue already.

        Returns:
            The requests that were running.
        """
        running = [request for request in self._running if request.finish_reason is None]
        self._may_admit = True
        self.block_manager.reset()
        if self.states is not None:
            self.states.reset()
        for request in running:
            _forget_pages(request)
            if request not in self._waiting:
                insort(self._waiting, request, key=_queue_key)
        self._running.clear()  # last, so that no request is lost if this call is interrupted
        return running

    def _admit(self) -> None:
        """Allocate seats and pages for waiting requests, the tenant with the fewest seats first."""
        prefixes = PrefixLookup(
            self.block_manager, self.states, self._running, enabled=self.enable_prefix_caching
        )
        quotas = self._quotas()
        queues = by_tenant(self._waiting)
        while queues:
            tenant = min(queues, key=quotas.order)
            request = min(queues[tenant], key=quotas.turn)
            queues[tenant].remove(request)
            found = prefixes.find(request)
            if found is None:
                pass  # a running request computes the next page: wait, then share the page
            elif self._allocate(request, found, quotas):
                # In this order, Ctrl-C between the two lines loses no request.
                insort(self._running, request, key=_queue_key)
                self._waiting.remove(request)
                quotas.add(request)
                prefixes.add(request)
            else:
                del queues[tenant]
                continue
            if not queues[tenant]:
                del queues[tenant]

    def _allocate(self, request: RequestState, found: list[int], quotas: TenantQuotas) -> bool:
        """Allocate the seat and the pages of a request, if necessary after preemptions.

        Args:
            request: the request.
            found: registered pages with the first tokens of the request, which shares the pages.
                With recurrent layers they end at a snapshot.
            quotas: the quotas of tenants, which may take seats and pages from each other.

        Returns:
            False if no seat is free or too few pages are available. Nothing is then changed.
        """
        manager, length = self.block_manager, len(request.tokens)
        manager.acquire(found)
        # The last token is always computed, to choose the next token. If the page of the last token
        # is shared, the token is written into a copy of the page, because other requests read it.
        copied = found.pop() if len(found) * manager.page_size == length else None
        needed = manager.pages_for(length) - len(found)
        victims = quotas.choose_victims(request.tenant, len(found), needed)
        if victims is None:
            manager.free(found if copied is None else [*found, copied])
            return False
        for victim in victims:
            self._preempt(victim)
        allocated = manager.allocate(needed)
        request.num_computed_tokens = len(found) * manager.page_size
        if copied is not None:
            self._copies[allocated[0]] = copied
            manager.free([copied])
            request.num_computed_tokens = length - 1
        request.block_table = found + allocated
        if self.states is not None:
            self.states.admit(request)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = request.num_computed_tokens
            self.prompt_tokens += request.num_prompt_tokens
            self.cached_tokens += request.num_cached_tokens
        return True

    def _decode_chunks(self, served: Sequence[RequestState]) -> list[Chunk]:
        """Return a chunk for each request that decodes, and allocate the pages of the chunks.

        If pages run out, draft tokens are dropped first, and then requests are preempted. The first
        request in queue order decodes as many tokens again as `DECODED_AGAIN` allows.
        """
        chunks: list[Chunk] = []
        again = DECODED_AGAIN
        for request in served:
            if not request.block_table or request.is_prefilling:  # no pages: preempted in this loop
                continue
            chunk = _decode_chunk(request, again)
            if not self.reserve(request, chunk.stop):
                request.draft_tokens.clear()
                chunk = _decode_chunk(request, again)
                while not self.reserve(request, chunk.stop):
                    self._preempt(self._next_to_preempt())
                    if not request.block_table:
                        break
            if request.block_table:
                again -= len(chunk.tokens) - 1 - len(request.draft_tokens)
                if self.states is not None:
                    chunk = self.states.assign_decode_slots(chunk)
                chunks.append(chunk)
        # A request of another tenant may have been preempted after its chunk was made.
        return [chunk for chunk in chunks if chunk.request.block_table]

    def _prefill_chunks(self, served: Sequence[RequestState], budget: int) -> list[Chunk]:
        """Return the chunks to prefill, with at most `budget` tokens."""
        prefilling = [each for each in served if each.is_prefilling and each.block_table]
        if not prefilling:
            return []
        lengths = divide_scored(prefilling, budget)
        chunks = [_prefill_chunk(request, length) for request, length in lengths.items()]
        if self.states is not None:
            chunks = [self.states.assign_prefill_slots(chunk) for chunk in chunks]
        return chunks

    def _quotas(self) -> TenantQuotas:
        """Count the seats and pages of all tenants."""
        return TenantQuotas(self._waiting, self._running, self.max_num_seqs, self.block_manager)

    def _next_to_preempt(self) -> RequestState:
        """Return the last running request of the tenant that uses most pages for its weight."""
        quotas = self._quotas()
        # Of equal tenants, the tenant whose request is last in queue order.
        return max(
            (last_of(self._running, tenant) for tenant in by_tenant(self._running)),
            key=lambda last: (quotas.page_use(last.tenant), _queue_key(last)),
        )

    def _preempt(self, request: RequestState) -> None:
        """Free the pages of a request, and put it back into the queue."""
        self.preemptions += 1
        self._free(request)
        insort(self._waiting, request, key=_queue_key)
        self._running.remove(request)  # last, so that Ctrl-C loses no request

    def _free(self, request: RequestState) -> None:
        self._may_admit = True
        for page in request.block_table:
            self._copies.pop(page, None)
        self.block_manager.free(request.block_table)
        if self.states is not None:
            self.states.free(request)
        _forget_pages(request)


def _forget_pages(request: RequestState) -> None:
    request.block_table = []
    request.slots = None
    request.branches.clear()
    request.num_computed_tokens = 0
    request.draft_tokens.clear()


def _queue_key(request: RequestState) -> int:
    """Return the sort key of the queue order. The request with the lowest key comes first."""
    return request.arrival + PATIENCE * request.priority


def _prefill_chunk(request: RequestState, length: int) -> Chunk:
    """Return the next `length` tokens of a prompt. A new token is chosen after the last of them."""
    start, stop = request.num_computed_tokens, request.num_computed_tokens + length
    ends = stop == len(request.tokens) and request.generates
    tokens = request.token_ids(start, stop)
    return Chunk(request, start, stop, tokens, int(ends), is_scored=request.wants_prompt_logprobs)


def _decode_chunk(request: RequestState, again: int) -> Chunk:
    """Return the tokens that a request decodes next, up to `again` of them decoded before."""
    start, num_tokens = request.num_computed_tokens, len(request.tokens)
    num_draft_tokens = len(request.draft_tokens)
    stop = min(num_tokens + num_draft_tokens, start + max(again, 1 + num_draft_tokens))
    num_samples = 1 + num_draft_tokens if stop == num_tokens + num_draft_tokens else 0
    return Chunk(request, start, stop, request.token_ids(start, stop), num_samples)
