"""Threads for work on the texts of clients, few of which serve long texts."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from tinyllm_serve.clients import Client
from tinyllm_serve.http.pace import Pacer
from tinyllm_serve.protocol.input_size import is_larger

LONG = 10_000
"""The size of long input, in characters. It takes more than 10 ms to encode."""

PER_VALUE = 20
"""Characters that take as long as a value: a message, or one of its fields."""

_turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
"""For each tenant with long input, the turn of its input."""

_long_texts = ThreadPoolExecutor(2, thread_name_prefix="long-text")

P = ParamSpec("P")
T = TypeVar("T")


async def run_in_thread(
    pacer: Pacer, client: Client, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call `work` in a thread, so that streams continue meanwhile.

    Long input, by the size of `args`, waits for one of two threads, so that it never occupies all
    threads that other requests need. Each thread also takes time from the event loop, because most
    of the work holds Python's lock. A client has one long input at a time in these threads, so that
    other clients wait for one of its inputs and not for all, and rests after it.
    """
    if not any(is_larger(each, LONG, per_value=PER_VALUE) for each in args):
        return await asyncio.to_thread(work, *args, **kwargs)
    seconds = 0.0

    def timed() -> T:
        nonlocal seconds
        start = time.thread_time()
        try:
            return work(*args, **kwargs)
        finally:
            seconds = time.thread_time() - start

    async with _turns.setdefault(client.tenant, asyncio.Lock()):
        try:
            return await asyncio.get_running_loop().run_in_executor(_long_texts, timed)
        finally:
            await pacer.rest(client, seconds)
