"""The slots of recurrent state that each chunk of a step loads and saves, without tensors."""

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from tinyllm_layers.cache.snapshots import PROMPT_TAIL
from tinyllm_ops import NO_STATE

from tinyllm_engine.config import EngineSettings
from tinyllm_engine.kv.memory_plan import MemoryPlan
from tinyllm_engine.kv.snapshot_store import SnapshotStore
from tinyllm_engine.request import RequestSlots, RequestState
from tinyllm_engine.schedule.step import Chunk

_log = logging.getLogger(__name__)

SNAPSHOT_INTERVAL = 1024
"""The number of prompt tokens between two snapshots, apart from those at branches and ends."""


class StateSlots:
    """Assigns the slots of recurrent state to requests, for models with recurrent layers.

    A running request has one slot with the state after its computed tokens. A step that verifies
    draft tokens saves the state after each of them in a slot of its own. The accepted tokens then
    decide which of these slots the request keeps, so that no token is computed twice.

    Prefill passes also save snapshots, at ends of pages where a later prompt may branch off:

    - at the last end of a page within a prompt, and the last one before its `PROMPT_TAIL` tokens,
    - at `RequestState.branches`, where another prompt is known to branch off,
    - after every `SNAPSHOT_INTERVAL` tokens. In a prompt so long that these would take more than a
      quarter of all snapshots, the interval is a multiple.

    Only prefilled tokens are shared. A prompt that contains the answer to an earlier prompt is
    prefilled from the end of the earlier prompt on, because decoded tokens round differently.

    Attributes:
        capacity: the number of slots for requests.
        page_size: the number of tokens in a page.
        snapshots: the snapshots of prefixes.
    """

    def __init__(self, capacity: int, snapshots: int, page_size: int) -> None:
        """Make free slots: 0 to `capacity` for requests, and the following for snapshots."""
        self.capacity = capacity
        self.page_size = page_size
        self.snapshots = SnapshotStore(range(capacity, capacity + snapshots))
        self.reset()

    def reset(self) -> None:
        """Free all slots and drop all snapshots, because the contents of slots are lost."""
        self._free = deque(range(self.capacity))
        self.snapshots.reset()

    @property
    def used(self) -> int:
        """The number of slots that requests hold, apart from those of snapshots."""
        return self.capacity - len(self._free)

    @property
    def unused(self) -> int:
        """The number of slots that a request, or a draft token, may get."""
        return len(self._free)

    def shareable(self, request: RequestState) -> list[bytes]:
        """Return the block hashes of the pages that may end a shared prefix of a request.

        The last token of a prompt is always computed, and generated tokens are not shared.
        """
        if not self.snapshots.slots:
            return []
        return request.block_hashes(self.page_size)[: self._last_page(request)]

    def admit(self, request: RequestState) -> None:
        """Allocate a slot, and hold the snapshot of the computed tokens if there are any.

        The caller limits the number of running requests to `capacity`.
        """
        slots = request.slots = RequestSlots([self._free.popleft()], NO_STATE)
        if request.num_computed_tokens:
            end = self._hash(request, request.num_computed_tokens)
            slots.current = slots.held[end] = self.snapshots.acquire(end)

    def free(self, request: RequestState) -> None:
        """Free all slots of a request."""
        slots, request.slots = _slots_of(request), None
        self._free.extend(slots.own)
        for block_hash in slots.held:
            self.snapshots.release(block_hash)

    def assign_prefill_slots(self, chunk: Chunk) -> Chunk:
        """Return a chunk of a prompt with its slots."""
        slots, saves = _slots_of(chunk.request), dict[int, int]()
        for length in self._ends(chunk):
            block_hash = self._hash(chunk.request, length)
            slot = self.snapshots.begin(block_hash)
            if slot is not None:
                saves[length] = slots.held[block_hash] = slot
        load = slots.current
        # A token has one slot. If it is the slot of a snapshot, the next pass loads the snapshot.
        slots.current = saves.setdefault(chunk.stop, slots.own[0])
        return replace(chunk, load=load, saves=saves)

    def assign_decode_slots(self, chunk: Chunk) -> Chunk:
        """Return a chunk of decoded tokens with its slots.

        If too few slots are free, the last draft tokens are dropped from the request.
        """
        slots, draft_tokens = _slots_of(chunk.request), chunk.request.draft_tokens
        dropped = max(0, len(draft_tokens) - len(self._free))
        if dropped:
            del draft_tokens[-dropped:]
            chunk = replace(
                chunk,
                stop=chunk.stop - dropped,
                tokens=chunk.tokens[:-dropped],
                num_samples=chunk.num_samples - dropped,
            )
        slots.own += [self._free.popleft() for _ in draft_tokens]
        load, slots.current = slots.current, slots.own[0]
        saves = dict(enumerate(slots.own, chunk.stop - len(draft_tokens)))
        return replace(chunk, load=load, saves=saves)

    def update(self, request: RequestState, computed: int) -> None:
        """Record that the passes of a step have computed the first `computed` tokens."""
        slots = _slots_of(request)
        if len(slots.own) > 1:
            # The step computed one token, with the state in `own[0]`, and then the draft tokens.
            slots.current = slots.own.pop(computed - request.num_computed_tokens - 1)
            self._free.extend(slots.own)
            slots.own = [slots.current]
        for block_hash, slot in list(slots.held.items()):
            self.snapshots.publish(block_hash)
            if slot != slots.current:
                del slots.held[block_hash]
                self.snapshots.release(block_hash)

    def _ends(self, chunk: Chunk) -> Iterator[int]:
        """Yield the lengths of prefixes at which a chunk saves snapshots, in ascending order."""
        if not self.snapshots.slots:
            return
        request, size = chunk.request, self.page_size
        last = self._last_page(request) * size
        most = max(1, len(self.snapshots.slots) // 4)
        interval = SNAPSHOT_INTERVAL * max(1, -(-last // (SNAPSHOT_INTERVAL * most)))
        for length in range((chunk.start // size + 1) * size, min(chunk.stop, last) + 1, size):
            # With pages of any size: the first end of a page at or after each interval.
            at_end = length in (last, (request.num_prompt_tokens - PROMPT_TAIL) // size * size)
            if at_end or length in request.branches or length % interval < size:
                yield length

    def _last_page(self, request: RequestState) -> int:
        """Return the number of full pages before the last token of the prompt."""
        return (request.num_prompt_tokens - 1) // self.page_size

    def _hash(self, request: RequestState, length: int) -> bytes:
        """Return the block hash of the page that ends after `length` tokens."""
        return request.block_hashes(self.page_size)[length // self.page_size - 1]


def _slots_of(request: RequestState) -> RequestSlots:
    assert request.slots is not None, "the request runs"
    return request.slots


def make_state_slots(plan: MemoryPlan, settings: EngineSettings) -> StateSlots | None:
    """Return the slots of an engine; None for a model without recurrent layers."""
    if not plan.num_states:
        return None
    if settings.enable_prefix_caching and not plan.num_snapshots:
        _log.warning(
            "requests share no prefixes: the memory has no room for a snapshot of recurrent states"
        )
    if plan.num_states < settings.max_num_seqs:
        _log.info("the memory has room for the recurrent states of %d requests", plan.num_states)
    return StateSlots(plan.num_states, plan.num_snapshots, settings.page_size)
