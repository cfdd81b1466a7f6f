"""Threads for work on the texts of clients, few of which serve long texts."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from tinyllm_serve.clients import Client
from tinyllm_serve.http.rate_limiter import RateLimiter
from tinyllm_serve.protocol.input_size import is_larger

LONG = 10_000
"""The size of long input, in characters. It takes more than 10 ms to encode."""

PER_VALUE = 20
"""Characters that take as long as a value: a message, or one of its fields."""

_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
"""For each tenant with long input, the lock that its input in a thread holds."""

_short_texts = ThreadPoolExecutor(2, thread_name_prefix="short-text")
_long_texts = ThreadPoolExecutor(2, thread_name_prefix="long-text")
"""More threads are not faster, because most of the work holds Python's lock (GIL). The event loop
waits up to 5 ms for the lock, for each thread, whenever it has given it up."""

P = ParamSpec("P")
T = TypeVar("T")


async def run_in_thread(
    rate_limiter: RateLimiter,
    client: Client,
    work: Callable[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Call `work` in a thread, so that streams continue meanwhile.

    Long input, by the size of `args`, has two threads of its own, so that other requests do not
    wait for it. A client has one long input at a time in these threads, so that other clients wait
    for one of its inputs and not for all. The rate limiter charges the client for the time of the
    thread. Work that is cancelled before a thread is free is left out. A thread that has begun goes
    on, and the client's next long input waits for its end.
    """
    if not any(is_larger(each, LONG, per_value=PER_VALUE) for each in args):
        short = partial(work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(_short_texts, short)
    seconds = 0.0

    def timed() -> T:
        nonlocal seconds
        start = time.thread_time()
        try:
            return work(*args, **kwargs)
        finally:
            seconds = time.thread_time() - start

    async with _locks.setdefault(client.tenant, asyncio.Lock()):
        job = _long_texts.submit(timed)
        done = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(done)
        finally:
            job.cancel()
            await asyncio.wait([done])
            if not done.cancelled():
                done.exception()  # asyncio would log the error that no caller waits for
            await rate_limiter.charge_thread_time(client, seconds)
