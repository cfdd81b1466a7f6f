"""The rate limit of clients, with a clock of the test."""

import asyncio
import time

import httpx
import pytest
from tinyllm_serve.application import make_application
from tinyllm_serve.clients import Client
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.http.rate_limiter import BURST, MAX_DELAY, RATE, REFUSAL_SECONDS, RateLimiter
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings

BUSY, QUIET = Client(tenant="busy"), Client(tenant="quiet")


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the delays so far. The clock stands still, and no call sleeps."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        if seconds:
            found.append(seconds)

    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


async def work(rate_limiter: RateLimiter, client: Client, times: int, units: float = 1.0) -> None:
    for _ in range(times):
        async with rate_limiter.acquire(client, units):
            pass


def test_a_client_that_is_alone_is_never_delayed(delays: list[float]) -> None:
    async def test() -> None:
        rate_limiter = RateLimiter()
        await work(rate_limiter, BUSY, 10_000)
        async with rate_limiter.acquire(QUIET):
            await work(rate_limiter, BUSY, 1)

    asyncio.run(test())
    assert sum(delays) <= 1 / RATE, "work of a client that was alone counts against it"


def test_a_busy_client_is_delayed_to_the_rate_beside_another(delays: list[float]) -> None:
    async def test() -> None:
        rate_limiter = RateLimiter()
        async with rate_limiter.acquire(QUIET):
            await work(rate_limiter, BUSY, int(BURST) + 50)

    asyncio.run(test())
    assert len(delays) == 50
    assert delays[-1] == pytest.approx(50 / RATE)


def test_a_later_part_of_a_request_waits_as_long_as_needed(delays: list[float]) -> None:
    units = BURST + 2 * MAX_DELAY * RATE

    async def test() -> None:
        rate_limiter = RateLimiter()
        async with rate_limiter.acquire(QUIET):
            await work(rate_limiter, BUSY, 1)
            with pytest.raises(ApiError):
                await work(rate_limiter, BUSY, 1, units)
            async with rate_limiter.acquire(BUSY, units, refuses=False):
                pass

    asyncio.run(test())
    assert delays == pytest.approx([REFUSAL_SECONDS, 2 * MAX_DELAY + 1 / RATE])


def test_a_client_with_a_full_burst_waits_for_a_long_body(delays: list[float]) -> None:
    light = Client(tenant="light", weight=0.1)

    async def test() -> None:
        rate_limiter = RateLimiter()
        async with rate_limiter.acquire(QUIET):
            await work(rate_limiter, light, 1, 2 * BURST)
            with pytest.raises(ApiError):
                await work(rate_limiter, light, 1)

    asyncio.run(test())
    assert delays == pytest.approx([BURST / (0.1 * RATE), REFUSAL_SECONDS])


def test_answers_of_an_accepted_request_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinyllm_serve.http.rate_limiter.MAX_DELAY", 0.1)

    async def complete() -> httpx.Response:
        service = Service(Settings())
        await service.start()
        transport = httpx.ASGITransport(make_application(service))
        body = {"prompt": ["a"] * 75, "n": 2, "max_tokens": 1}
        async with (
            service.rate_limiter.acquire(QUIET),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            return await client.post("/v1/completions", json=body)

    answer = asyncio.run(complete())
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == 150


def test_the_quiet_client_is_not_delayed(delays: list[float]) -> None:
    async def test() -> None:
        rate_limiter = RateLimiter()
        async with rate_limiter.acquire(QUIET):
            await work(rate_limiter, BUSY, 500)
            before = len(delays)
            async with rate_limiter.acquire(BUSY):
                await work(rate_limiter, QUIET, 20)
        assert len(delays) == before + 1, "the busy client alone was delayed"

    asyncio.run(test())


def test_weight_and_units_change_the_rate(delays: list[float]) -> None:
    async def test() -> None:
        rate_limiter = RateLimiter()
        async with rate_limiter.acquire(QUIET):
            await work(rate_limiter, Client(tenant="heavy", weight=10.0), 1000)
            assert max(delays) == pytest.approx(900 / (10 * RATE))
            delays.clear()
            await work(rate_limiter, Client(tenant="light", weight=0.5), 1)
            assert not delays
            await work(rate_limiter, Client(tenant="long bodies"), 2, units=BURST)
            assert delays == [pytest.approx(BURST / RATE)]

    asyncio.run(test())


def test_work_that_would_wait_too_long_is_refused(delays: list[float]) -> None:
    async def test() -> None:
        rate_limiter = RateLimiter()
        async with rate_limiter.acquire(QUIET):
            with pytest.raises(ApiError, match="too much") as error:
                await work(rate_limiter, BUSY, 1000)
            assert error.value.status == 429
            assert delays[-1] == REFUSAL_SECONDS
            await work(rate_limiter, QUIET, 1)

    asyncio.run(test())
    assert max(delays) <= MAX_DELAY


def test_clients_that_have_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))

    async def test() -> None:
        rate_limiter = RateLimiter()
        async with rate_limiter.acquire(QUIET):
            for number in range(100):
                await work(rate_limiter, Client(tenant=str(number)), 3)
        assert len(rate_limiter._full_at) < 5

    asyncio.run(test())


def test_each_embedded_text_is_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[float] = []

    def charge(_rate_limiter: RateLimiter, _client: Client, units: float) -> float:
        charged.append(units)
        return 0.0

    monkeypatch.setattr(RateLimiter, "_charge", charge)

    async def embed() -> httpx.Response:
        service = Service(Settings())
        await service.start()
        transport = httpx.ASGITransport(make_application(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/v1/embeddings", json={"input": ["one", "two", "three"]})

    assert asyncio.run(embed()).status_code == 200
    assert sum(charged) == pytest.approx(1 + 3, abs=0.01), "the request and its texts"
