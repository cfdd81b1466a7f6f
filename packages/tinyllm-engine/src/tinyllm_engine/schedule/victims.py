"""The choice of the requests to preempt for a waiting request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.request import RequestState
from tinyllm_engine.schedule.shares import Shares


def victims_of(
    tenant: str,
    needed: int,
    found: int,
    running: Sequence[RequestState],
    max_running: int,
    block_manager: BlockManager,
    shares: Shares,
) -> list[RequestState] | None:
    """Return the requests to preempt for a request of `tenant`; None if it cannot be admitted.

    All victims are known before the first one is preempted, so that none is preempted in vain.
    Each running request may soon need one more page, so one page more is kept for each.

    Args:
        tenant: the tenant, which gets a seat.
        needed: the number of pages to allocate.
        found: the number of pages that the request shares and has acquired.
        running: the running requests, in queue order.
        max_running: the number of all seats.
        block_manager: the allocation of pages.
        shares: the shares of tenants. The victims are removed from the counts.
    """
    left, available = list(running), block_manager.available
    victims: list[RequestState] = []
    released: Counter[int] = Counter()  # the victims that hold each page
    while len(left) >= max_running or needed + len(left) > available:
        if len(left) >= max_running:
            above = shares.seat_from(tenant)
        else:
            above = shares.pages_from(tenant, found + needed)
        if above is None:
            shares.count(running)
            return None
        victims.append(last_of(left, above))
        left.remove(victims[-1])
        shares.remove(victims[-1])
        released.update(victims[-1].block_table)
        available += sum(released[x] == block_manager.holders(x) for x in victims[-1].block_table)
    return victims


def last_of(running: Sequence[RequestState], tenant: str) -> RequestState:
    """Return the running request of a tenant that is last in queue order."""
    return next(each for each in reversed(running) if each.tenant == tenant)
