"""The search for the prefix that a waiting request can share."""

from collections.abc import Iterable

from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.request import RequestState
from tinyllm_engine.schedule.state_slots import StateSlots


class PrefixLookup:
    """Finds the pages of the longest prefix that is computed, or that is being computed.

    A request waits while a running request of its tenant computes more of the same prefix. With
    recurrent layers a prefix must also end at a snapshot. If two prompts have more tokens in
    common, the branch is noted in `RequestState.branches` of the request that computes these
    tokens. That request saves a snapshot there, which the next request finds.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        states: StateSlots | None,
        running: Iterable[RequestState],
        *,
        enabled: bool,
    ) -> None:
        """Note the prefixes that the running requests compute.

        Args:
            block_manager: the allocation of pages.
            states: the slots of recurrent state; None for models without recurrent layers.
            running: the running requests.
            enabled: False if requests share no prefixes.
        """
        self._block_manager = block_manager
        self._states = states
        self._enabled = enabled
        self._computing: dict[tuple[str, bytes], RequestState] = {}
        for request in running:
            if request.is_prefilling:
                self.add(request)

    def add(self, request: RequestState) -> None:
        """Note the prefixes that a request computes, which was admitted."""
        tenant = request.tenant
        first = request.num_computed_tokens // self._block_manager.page_size
        for block_hash in self._hashes(request)[first:]:
            self._computing[tenant, block_hash] = request

    def find(self, request: RequestState) -> list[int] | None:
        """Return the pages that a request shares; None if it waits for a running request."""
        if request.wants_prompt_logprobs:
            return []
        hashes, tenant = self._hashes(request), request.tenant
        found = self._block_manager.find(hashes)
        if self._states is None:
            waits = len(found) < len(hashes) and (tenant, hashes[len(found)]) in self._computing
            return None if waits else found
        size = self._block_manager.page_size
        count = self._states.snapshots.longest(hashes[: len(found)])
        for pages in range(len(hashes), count, -1):
            other = self._computing.get((tenant, hashes[pages - 1]))
            if other is not None:
                other.branches.add(pages * size)
                return None
        request.branches = {len(found) * size} if len(found) > count else set()
        return found[:count]

    def _hashes(self, request: RequestState) -> list[bytes]:
        """Return the block hashes of the pages of a request that can be shared."""
        if not self._enabled:
            return []
        if self._states is not None:
            return self._states.shareable(request)
        # After a preemption, generated tokens are decoded again: pages of another request may hold
        # the same tokens prefilled, which rounds differently.
        size = self._block_manager.page_size
        return request.block_hashes(size)[: request.num_prompt_tokens // size]
