"""The pace of requests: a client that sends many leaves time of the event loop to others."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tinyllm_serve.clients import Client

RATE = 100.0
"""Units of work a second that a client of weight 1 may begin while other clients are active.

A request and an answer are a unit each. A unit takes about 1 ms of the event loop, so that a client
takes about a tenth of the loop's time.
"""

BURST = 100.0
"""Units of work that a client may begin at once, after a time without work."""

BODY_UNIT = 20_000
"""Bytes of a body that count as one more unit. A schema of 200 kB takes about 10 ms."""


class Pacer:
    """Delays the work of a client to `RATE`, while other clients have work in progress.

    Work is never refused, and a client that is alone is never delayed. The delay is that of the
    generic cell rate algorithm (ITU-T I.371): work is due one interval after the work before.
    """

    def __init__(self) -> None:
        """Start without clients."""
        self._active: Counter[str] = Counter()
        self._due: OrderedDict[str, float] = OrderedDict()  # latest work last

    @asynccontextmanager
    async def turn(self, client: Client, units: float = 1.0) -> AsyncIterator[None]:
        """Wait until the client may begin work of some units, and count the work in progress."""
        tenant = client.tenant
        self._active[tenant] += 1
        try:
            delay = self._delay(client, units)
            if delay > 0:
                await asyncio.sleep(delay)
            yield
        finally:
            self._active[tenant] -= 1
            if not self._active[tenant]:
                del self._active[tenant]

    def _delay(self, client: Client, units: float) -> float:
        """Return the seconds until the client may begin, and move its next work behind."""
        tenant, now, interval = client.tenant, time.monotonic(), 1.0 / (RATE * client.weight)
        due = max(self._due.get(tenant, 0.0), now - BURST * interval) + units * interval
        if len(self._active) == 1:  # the client is alone: it is not delayed, and owes nothing later
            due = min(due, now)
        self._due[tenant] = due
        self._due.move_to_end(tenant)
        while next(iter(self._due.values())) <= now - BURST / RATE:
            self._due.popitem(last=False)  # it may begin a whole burst, as a new client may
        return due - now
