"""Long input: a client has one thread at a time, and is charged for the time of the thread."""

import asyncio
import gc
import threading
import time

from tinyllm_serve.clients import Client
from tinyllm_serve.generation.threads import run_in_thread
from tinyllm_serve.http.rate_limiter import BURST, RATE, UNIT_SECONDS, RateLimiter

BUSY, QUIET = Client(tenant="busy"), Client(tenant="quiet")
MESSAGES = [{"role": "user", "content": ""}] * 1500
"""Messages of 49,500 bytes. The template takes 100 to 300 ms for them."""


def render(_messages: object, seconds: float) -> None:
    """Take some time for messages."""
    time.sleep(seconds)


def test_a_client_waits_for_one_input_of_another_client() -> None:
    async def test() -> float:
        rate_limiter = RateLimiter()
        busy = [
            asyncio.create_task(run_in_thread(rate_limiter, BUSY, render, MESSAGES, 0.1))
            for _ in range(20)
        ]
        await asyncio.sleep(0.05)
        start = time.monotonic()
        await run_in_thread(rate_limiter, QUIET, render, MESSAGES, 0.01)
        waited = time.monotonic() - start
        for each in busy:
            each.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        return waited

    assert asyncio.run(test()) < 0.5


def test_many_messages_of_a_client_are_rendered_in_one_thread() -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def work(_messages: object) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    async def test() -> None:
        rate_limiter = RateLimiter()
        await asyncio.gather(*(run_in_thread(rate_limiter, BUSY, work, MESSAGES) for _ in range(8)))

    asyncio.run(test())
    assert most == 1


def test_cancelled_work_is_left_out_and_begun_work_delays_the_next() -> None:
    events, gate = list[str](), threading.Event()

    def work(_messages: object, name: str) -> None:
        events.append(f"{name} begins")
        gate.wait(60)
        events.append(f"{name} ends")

    async def test() -> None:
        rate_limiter = RateLimiter()
        tasks = [
            asyncio.create_task(
                run_in_thread(rate_limiter, Client(tenant=name), work, MESSAGES, name)
            )
            for name in "abcd"
        ]
        while len(events) < 2:  # both threads work
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks[2:])
        again = run_in_thread(rate_limiter, Client(tenant="a"), work, MESSAGES, "a again")
        tasks.append(asyncio.create_task(again))
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.wait(tasks)

    asyncio.run(test())
    assert sorted(events[:2]) == ["a begins", "b begins"]
    assert events.index("a ends") < events.index("a again begins")
    assert len(events) == 6


def test_a_busy_client_waits_after_long_input_beside_another_client() -> None:
    async def test() -> float:
        rate_limiter = RateLimiter()
        async with rate_limiter.acquire(QUIET), rate_limiter.acquire(BUSY, BURST - 1):
            start = time.monotonic()
            await rate_limiter.charge_thread_time(BUSY, 20 * UNIT_SECONDS)
            return time.monotonic() - start

    assert 15 / RATE < asyncio.run(test()) < 60 / RATE


def test_the_error_of_begun_work_whose_caller_has_gone_is_not_logged() -> None:
    begun, gate, logged = threading.Event(), threading.Event(), list[object]()

    def work(_messages: object) -> None:
        begun.set()
        gate.wait(60)
        raise ValueError

    async def test() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: logged.append(context))
        task = asyncio.create_task(run_in_thread(RateLimiter(), BUSY, work, MESSAGES))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        loop.call_later(0.05, gate.set)  # after the cancellation
        await asyncio.wait([task])
        del task
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(test())
    assert not logged
