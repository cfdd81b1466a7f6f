"""Soak test of a server: its resource usage before and after many requests."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import httpx
from soak.requests import ClientRequest
from soak.resource_usage import ResourceUsage, highest
from tinyllm_bench.errors import BenchError
from tinyllm_bench.serving.server import RunningServer

_WARM_UP = 0.1  # share of the time, in which caches are filled
_IDLE_TIMEOUT = 60.0  # seconds until a server without clients must be idle
_REST = 2.0  # seconds until a server has freed its unused memory
_INTERVAL = 1.0  # seconds between two measurements

Progress = Callable[[float], None]
"""Receives the seconds since the start."""


@dataclass(frozen=True)
class SoakResult:
    """Resource usage around many requests.

    Attributes:
        seconds: duration after the warm-up.
        outcomes: number of requests by outcome, or by error message.
        before: idle usage after the warm-up.
        highest: highest usage during the requests.
        after: idle usage at the end.
    """

    seconds: float
    outcomes: Counter[str]
    before: ResourceUsage
    highest: ResourceUsage
    after: ResourceUsage

    @property
    def complaints(self) -> list[str]:
        """Values that have grown, and failed requests."""
        failures = [
            f"{count} requests failed: {error}"
            for error, count in self.outcomes.items()
            if error not in ("answered", "left", "refused")
        ]
        return [*self.after.growth(self.before), *failures]


def soak(
    server: RunningServer, seconds: float, clients: int, seed: int, progress: Progress
) -> SoakResult:
    """Send requests for `seconds` seconds from `clients` clients. The first tenth is the warm-up.

    Raises:
        BenchError: if the server is still busy a minute after the last request.
    """
    warm_up = seconds * _WARM_UP
    asyncio.run(_send_requests(server, warm_up, clients, seed, progress))
    before = _idle_usage(server)
    outcomes, usages = asyncio.run(
        _send_requests(
            server, seconds - warm_up, clients, seed + 1, lambda s: progress(warm_up + s)
        )
    )
    after = _idle_usage(server)
    return SoakResult(seconds - warm_up, outcomes, before, highest(*usages), after)


async def _send_requests(
    server: RunningServer, seconds: float, clients: int, seed: int, progress: Progress
) -> tuple[Counter[str], list[ResourceUsage]]:
    """Send requests, and measure the server at the same time.

    The first request of each kind fills caches, before all other requests and before the time is
    counted.
    """
    outcomes: Counter[str] = Counter()
    first = ClientRequest.of_each_kind(random.Random(seed))
    usages = [await asyncio.to_thread(ResourceUsage.of, server.url, server.pid)]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as connections:

        async def send(request: ClientRequest) -> None:
            try:
                outcomes[await request.send(connections)] += 1
            except httpx.HTTPError as error:
                outcomes[str(error) or type(error).__name__] += 1

        async def run_client(number: int) -> None:
            draw = random.Random(f"{seed} {number}")
            while time.monotonic() - start < seconds:
                await send(ClientRequest.draw(draw))
                await asyncio.sleep(draw.expovariate(10.0))

        async def measure() -> None:
            while (passed := time.monotonic() - start) < seconds:
                progress(passed)
                usages.append(await asyncio.to_thread(ResourceUsage.of, server.url, server.pid))
                await asyncio.sleep(_INTERVAL)

        for request in first:
            await send(request)
        start = time.monotonic()
        await asyncio.gather(measure(), *map(run_client, range(clients)))
    return outcomes, usages


def _idle_usage(server: RunningServer) -> ResourceUsage:
    """Return the usage once no request is in progress and connections are closed."""
    time.sleep(_REST)
    deadline = time.monotonic() + _IDLE_TIMEOUT
    while True:
        usage = ResourceUsage.of(server.url, server.pid)
        if usage.is_idle and usage.sockets <= 1:
            return usage
        if time.monotonic() > deadline:
            raise BenchError(f"the server is not idle a minute after its clients: {usage}")
        time.sleep(0.2)
