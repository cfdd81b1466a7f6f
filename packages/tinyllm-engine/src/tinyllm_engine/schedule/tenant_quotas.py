"""The quotas of seats and pages of tenants, and the requests to preempt for them."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.request import RequestState


def by_tenant(requests: Iterable[RequestState]) -> dict[str, list[RequestState]]:
    """Return the requests of each tenant, in the given order."""
    queues: dict[str, list[RequestState]] = {}
    for request in requests:
        queues.setdefault(request.tenant, []).append(request)
    return queues


def last_of(requests: Sequence[RequestState], tenant: str) -> RequestState:
    """Return the request of a tenant that is last in queue order."""
    return next(each for each in reversed(requests) if each.tenant == tenant)


class TenantQuotas:
    """Seats and pages of tenants in use, and the quotas that their weights entitle them to.

    A seat is the right to run: `max_num_seqs` requests run at a time. A tenant may use more than
    its quota while other tenants use less. A tenant below its quota takes seats and pages back from
    tenants above theirs, and never gets more than its quota in this way. A preempted tenant is
    therefore at or above its quota, and cannot take anything back in turn.
    """

    def __init__(
        self,
        waiting: Sequence[RequestState],
        running: Sequence[RequestState],
        max_num_seqs: int,
        block_manager: BlockManager,
    ) -> None:
        """Count the seats and pages of the running requests.

        Args:
            waiting: the requests in the queue. Their tenants have a quota too.
            running: the running requests, in queue order: the list of the scheduler, which changes
                when requests are admitted or preempted.
            max_num_seqs: the number of all seats.
            block_manager: the allocation of pages.
        """
        self._running = running
        self._max_num_seqs = max_num_seqs
        self._block_manager = block_manager
        self._weights = {each.tenant: each.weight for each in waiting}
        self._count()

    def add(self, request: RequestState) -> None:
        """Count a request that was admitted."""
        tenant = request.tenant
        self._seats[tenant] += 1
        self._pages_used[tenant] += len(request.block_table)
        self._groups[tenant, request.group] += 1

    def order(self, tenant: str) -> float:
        """Return the key by which tenants are admitted: the seats in use over the weight."""
        return self._seats[tenant] / self._weights[tenant]

    def turn(self, request: RequestState) -> int:
        """Return the key by which requests of a tenant are admitted: the seats of their group."""
        return self._groups[request.tenant, request.group]

    def page_use(self, tenant: str) -> float:
        """Return the pages that a tenant uses, over its weight."""
        return self._pages_used[tenant] / self._weights[tenant]

    def choose_victims(self, tenant: str, found: int, needed: int) -> list[RequestState] | None:
        """Return the requests to preempt for a request of `tenant`; None if it cannot be admitted.

        All victims are known before the first one is preempted, so that none is preempted in vain.
        Each running request may soon need one more page, so one page more is kept for each. The
        victims are no longer counted.

        Args:
            tenant: the tenant, which gets a seat.
            found: the number of pages that the request shares and has acquired.
            needed: the number of pages to allocate.
        """
        manager = self._block_manager
        left, available = list(self._running), manager.available
        victims: list[RequestState] = []
        released: Counter[int] = Counter()  # the victims that hold each page
        while len(left) >= self._max_num_seqs or needed + len(left) > available:
            if len(left) >= self._max_num_seqs:
                above = self._seat_from(tenant)
            else:
                above = self._pages_from(tenant, found + needed)
            if above is None:
                self._count()
                return None
            victims.append(last_of(left, above))
            left.remove(victims[-1])
            self._remove(victims[-1])
            released.update(victims[-1].block_table)
            available += sum(released[x] == manager.holders(x) for x in victims[-1].block_table)
        return victims

    def _seat_from(self, tenant: str) -> str | None:
        """Return the tenant that loses a seat to `tenant`.

        The result is None if `tenant` has its quota, or no other tenant exceeds its own.
        """
        if self._seats[tenant] >= self._seat_quota(tenant):
            return None
        above = [each for each in self._seats if self._seats[each] > self._seat_quota(each)]
        return max(above, key=self.order, default=None)

    def _pages_from(self, tenant: str, more: int) -> str | None:
        """Return the tenant that loses pages to `tenant`, which would use `more` pages more.

        The result is None if `tenant` would exceed its quota, or no other tenant exceeds its own.
        """
        if self._pages_used[tenant] + more > self._page_quota(tenant):
            return None
        above = [
            each
            for each in self._pages_used
            if each != tenant and self._pages_used[each] > self._page_quota(each)
        ]
        return max(above, key=self.page_use, default=None)

    def _count(self) -> None:
        """Count the seats and pages of all running requests anew."""
        self._seats: Counter[str] = Counter()
        self._pages_used: Counter[str] = Counter()
        self._groups: Counter[tuple[str, str]] = Counter()
        self._weights |= {each.tenant: each.weight for each in self._running}
        self._total = sum(self._weights.values())
        for request in self._running:
            self.add(request)

    def _remove(self, request: RequestState) -> None:
        """Count a request no longer, because it will be preempted."""
        tenant = request.tenant
        self._seats[tenant] -= 1
        self._pages_used[tenant] -= len(request.block_table)
        self._groups[tenant, request.group] -= 1

    def _seat_quota(self, tenant: str) -> int:
        return max(1, int(self._max_num_seqs * (self._weights[tenant] / self._total)))

    def _page_quota(self, tenant: str) -> int:
        return int(self._block_manager.num_pages * (self._weights[tenant] / self._total))
