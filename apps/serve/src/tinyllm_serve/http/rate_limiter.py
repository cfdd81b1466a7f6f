"""The rate limit of clients, so that many requests of one client do not delay other clients."""

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tinyllm_serve.clients import Client
from tinyllm_serve.http.errors import ApiError

RATE = 100.0
"""Units of work a second that a client of weight 1 may begin while other clients are active.

A request, an answer and an embedded text are a unit each. A unit takes about 1 ms of the event
loop, so that a client takes about a tenth of the loop's time.
"""

BURST = 100.0
"""Units of work that a client may begin at once, after a time without work."""

BODY_UNIT = 20_000
"""Bytes of a body that count as one more unit. A schema of 200 kB takes about 10 ms."""

MAX_DELAY = 5.0
"""Seconds of the longest delay. Work that would wait longer is refused.

A client with a full burst is not refused, because it could otherwise never send a body that needs
more than the burst and this delay.
"""

REFUSAL_SECONDS = 1.0
"""Seconds before a refusal. A client that repeats its request at once would otherwise send as many
requests as the event loop can refuse, each with the first 64 KiB of a body."""

UNIT_SECONDS = 0.002
"""Seconds of a thread that count as one more unit. Threads hold Python's lock for half of them."""


class RateLimiter:
    """Limits the work of a client to `RATE`, while other clients have work in progress.

    A client that is alone is never delayed. The delay is that of the generic cell rate algorithm
    (ITU-T I.371): each unit of work moves the time at which the burst of the client is full again.
    """

    def __init__(self) -> None:
        """Start without clients."""
        self._active: Counter[str] = Counter()
        # The time at which the burst of each client is full again, the latest client last.
        self._full_at: OrderedDict[str, float] = OrderedDict()

    @asynccontextmanager
    async def acquire(
        self, client: Client, units: float = 1.0, *, refuses: bool = True
    ) -> AsyncIterator[None]:
        """Wait until the client may begin work of some units, and count the work in progress.

        Args:
            client: the client.
            units: the units of work.
            refuses: False for the later parts of a request, which wait as long as needed.

        Raises:
            ApiError: 429, after `REFUSAL_SECONDS`, if the client has begun so much that it would
                wait `MAX_DELAY`. A client with a full burst waits longer.
        """
        tenant = client.tenant
        self._active[tenant] += 1
        try:
            refuses = refuses and self._full_at.get(tenant, 0.0) > time.monotonic()
            delay = self._charge(client, units)
            if refuses and delay > MAX_DELAY:
                self._charge(client, -units)
                await asyncio.sleep(REFUSAL_SECONDS)
                message = "this client has sent too much while others wait: send it again later"
                headers = {"Retry-After": str(math.ceil(MAX_DELAY))}
                raise ApiError(429, message, code="too_busy", headers=headers)
            await asyncio.sleep(max(delay, 0.0))
            yield
        finally:
            self._active[tenant] -= 1
            if not self._active[tenant]:
                del self._active[tenant]

    async def charge_thread_time(self, client: Client, seconds: float) -> None:
        """Charge a client for seconds of a thread, and wait until the client may continue."""
        delay = self._charge(client, seconds / UNIT_SECONDS)
        await asyncio.sleep(min(max(delay, 0.0), MAX_DELAY))

    def _charge(self, client: Client, units: float) -> float:
        """Take units from the burst of a client; return the seconds until it may begin."""
        tenant, now, interval = client.tenant, time.monotonic(), 1.0 / (RATE * client.weight)
        full_at = max(self._full_at.get(tenant, 0.0), now) + units * interval
        if len(self._active) <= 1:  # the client is alone: it is not delayed, and owes nothing later
            full_at = min(full_at, now + BURST * interval)
        self._full_at[tenant] = full_at
        self._full_at.move_to_end(tenant)
        while self._full_at and next(iter(self._full_at.values())) <= now:
            self._full_at.popitem(last=False)
        return full_at - BURST * interval - now
