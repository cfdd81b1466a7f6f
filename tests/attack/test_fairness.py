"""One key at full load: a well-behaved stream of another key goes on."""

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest
from attack import bodies
from attack.victim import CHAT, Budget, Costs, Victim

EMBEDDINGS, COMPLETIONS = "/v1/embeddings", "/v1/completions"

TARGET = Budget(seconds=120, stall=1.0, memory=600, kept=100, rate=0.4, gap=1.0, first_token=2.0)
"""The share of its tokens/s that a stream keeps, and the longest times of the server."""

Load = tuple[str, Callable[[], bytes], int]
"""A path, the maker of a body, and the number of clients that send it."""

ALL = "all at once"
LOADS: dict[str, list[Load]] = {
    "16 choices of 16 prompts": [(COMPLETIONS, bodies.many_choices, 4)],
    "embeddings of 60 texts": [(EMBEDDINGS, bodies.embeddings, 8)],
    "schemas of 5,000 properties": [(CHAT, lambda: bodies.with_schema(bodies.properties(5000)), 4)],
    "10 MB of empty messages": [
        (CHAT, lambda: bodies.repeated('{"messages":[', "{}", "]}"), 2),
    ],
    "priority -1000": [(COMPLETIONS, lambda: bodies.many_choices(2, priority=-1000), 8)],
}
LOADS[ALL] = [load for loads in LOADS.values() for load in loads[:1]]


def full_load(victim: Victim, loads: list[Load], seconds: float) -> None:
    """Send the requests of one key again and again, and give up those that are left at the end."""
    end = time.monotonic() + seconds

    def keep_sending(path: str, body: bytes) -> None:
        if sys.platform == "linux":
            # Real clients run on other machines, and take no time of the server's processors.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        with victim.client() as client:
            while (left := end - time.monotonic()) > 0:
                headers = {"Content-Type": "application/json"}
                with suppress(httpx.TransportError):  # a refused body closes the connection
                    client.post(path, content=body, headers=headers, timeout=left)

    senders = [(path, make()) for path, make, clients in loads for _ in range(clients)]
    with ThreadPoolExecutor(len(senders)) as pool:
        for done in [pool.submit(keep_sending, *sender) for sender in senders]:
            done.result()


@pytest.mark.parametrize(
    "name",
    # A short run has all loads at once, which tells whether one of them is too much, but not which.
    [name if name == ALL else pytest.param(name, marks=pytest.mark.full) for name in LOADS],
)
def test_a_stream_of_another_key_goes_on(
    name: str, attacked: Victim, costs: Costs, full: bool
) -> None:
    seconds = 60.0 if full else 4.0
    costs.check(
        f"one key, {name}",
        attacked,
        lambda victim: full_load(victim, LOADS[name], seconds),
        TARGET if full else TARGET.relaxed,
    )
