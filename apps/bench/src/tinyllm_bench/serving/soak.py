"""Clients that come and go for a long time, and what a server holds before and after."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from tinyllm_bench.errors import BenchError
from tinyllm_bench.serving.served import RunningServer
from tinyllm_bench.serving.visit import Visit
from tinyllm_bench.serving.vitals import Vitals, highest

_WARM_UP = 0.1  # of the time: what is made once and kept is made in it
_PATIENCE = 60.0  # seconds until a server without clients is idle
_REST = 2.0  # seconds after which a server has given back what it does not need
_LOOK = 1.0  # seconds between two looks at the server

Tick = Callable[[float], None]
"""Is told how many seconds have passed."""


@dataclass(frozen=True)
class Soak:
    """How a server stood it.

    Attributes:
        seconds: that clients came.
        visits: how their requests ended, by outcome; of failures by what they said.
        before: idle, after the clients of a warm-up.
        highest: the most that was seen while they came.
        after: idle again.
    """

    seconds: float
    visits: Counter[str]
    before: Vitals
    highest: Vitals
    after: Vitals

    @property
    def complaints(self) -> list[str]:
        """What did not come back to where it was, and how requests failed."""
        failures = [
            f"{count} requests failed: {said}"
            for said, count in self.visits.items()
            if said not in ("answered", "left", "refused")
        ]
        return [*self.after.grown(self.before), *failures]


def soak(server: RunningServer, seconds: float, clients: int, seed: int, tick: Tick) -> Soak:
    """Let clients come for so many seconds, a tenth of it to warm up.

    Args:
        server: of whom they ask.
        seconds: how long.
        clients: how many at a time.
        seed: of what they ask, and when they leave.
        tick: is told of the progress.

    Raises:
        BenchError: if the server is still busy a minute after the last client has gone.
    """
    warm_up = seconds * _WARM_UP
    asyncio.run(_clients(server, warm_up, clients, seed, tick))
    before = _settled(server)
    visits, seen = asyncio.run(
        _clients(server, seconds - warm_up, clients, seed + 1, lambda s: tick(warm_up + s))
    )
    return Soak(seconds - warm_up, visits, before, highest(*seen), _settled(server))


async def _clients(
    server: RunningServer, seconds: float, clients: int, seed: int, tick: Tick
) -> tuple[Counter[str], list[Vitals]]:
    """Let them come, and look at the server meanwhile."""
    began = time.monotonic()
    visits: Counter[str] = Counter()
    first = Visit.of_each_kind(random.Random(seed))
    seen = [await asyncio.to_thread(Vitals.of, server.url, server.process)]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as connections:

        async def come(place: int) -> None:
            # What is made for the first request of a kind, and kept, is there before anything else.
            for visit in first if place == 0 else []:
                visits[await visit.pay(connections)] += 1
            draw = random.Random(f"{seed} {place}")
            while time.monotonic() - began < seconds:
                try:
                    visits[await Visit.draw(draw).pay(connections)] += 1
                except httpx.HTTPError as error:
                    visits[str(error) or type(error).__name__] += 1
                await asyncio.sleep(draw.expovariate(10.0))

        async def look() -> None:
            while (passed := time.monotonic() - began) < seconds:
                tick(passed)
                seen.append(await asyncio.to_thread(Vitals.of, server.url, server.process))
                await asyncio.sleep(_LOOK)

        await asyncio.gather(look(), *map(come, range(clients)))
    return visits, seen


def _settled(server: RunningServer) -> Vitals:
    """What it holds once nobody is being served, and connections are closed."""
    time.sleep(_REST)
    deadline = time.monotonic() + _PATIENCE
    while not (vitals := Vitals.of(server.url, server.process)).is_idle or vitals.sockets > 1:
        if time.monotonic() > deadline:
            raise BenchError(f"the server is not idle a minute after its clients: {vitals}")
        time.sleep(0.2)
    return vitals
