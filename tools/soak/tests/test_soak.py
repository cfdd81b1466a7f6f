"""Soak test: a short run, and the detection of leaks."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace

import httpx
import pytest
from soak import resource_usage, soak
from soak.__main__ import app
from soak.requests import ClientRequest
from soak.resource_usage import ResourceUsage, highest
from soak.soak import SoakResult
from tinyllm_bench.errors import BenchError
from tinyllm_bench.serving.server import RunningServer

IDLE = ResourceUsage(
    memory=100_000_000, pages=0, running=0, waiting=0, in_flight=1, handles=9, sockets=1, threads=4
)
NAMES = [each.name for each in fields(ResourceUsage)]


@pytest.mark.exhaustive
def test_a_server_frees_its_resources(run_tool: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = run_tool(app, "soak", "--minutes 0.2 --clients 12")
    complaints = err.splitlines()
    # In a few seconds the memory still grows, because caches are being filled.
    assert [line for line in complaints if not line.startswith("soak: memory")] == []
    assert code == (1 if complaints else 0)
    lines = out.splitlines()
    table = {
        row[0]: [int(n.replace(",", "")) for n in row[1:]] for row in map(str.split, lines[4:])
    }
    assert list(table) == NAMES
    before, most, after = (
        ResourceUsage(**{name: table[name][i] for name in NAMES}) for i in range(3)
    )
    assert before.is_idle
    assert after.is_idle
    assert after.sockets == before.sockets < most.sockets
    assert after.handles <= before.handles < most.handles
    assert after.threads <= before.threads
    assert most.pages > 0
    assert most.running > 4
    assert most.in_flight > 4
    found = re.findall(r"(\d[\d,]*) (answered|left|refused)", lines[1])
    counts = {name: int(n.replace(",", "")) for n, name in found}
    total = int(lines[1].split()[0].replace(",", ""))
    assert counts.keys() == {"answered", "left", "refused"}
    assert sum(counts.values()) == total
    assert counts["left"] > total // 5  # about half of the clients disconnect or read slowly


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_has_grown_is_reported(name: str) -> None:
    more = replace(IDLE, **{name: 2 * getattr(IDLE, name) + 1})
    (line,) = SoakResult(1.0, Counter(answered=3), IDLE, more, more).complaints
    assert line.startswith(f"{name}: ")
    assert SoakResult(1.0, Counter(left=3), IDLE, more, IDLE).complaints == []
    assert highest(IDLE, more, IDLE) == more


def test_a_failed_request_is_reported() -> None:
    outcomes = Counter({"answered": 2, "Server error '500'": 4})
    assert SoakResult(1.0, outcomes, IDLE, IDLE, IDLE).complaints == [
        "4 requests failed: Server error '500'"
    ]


def test_the_first_request_of_each_kind_ends_before_other_requests_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    kinds = len(ClientRequest.of_each_kind(random.Random(0)))

    async def send(self: ClientRequest, client: httpx.AsyncClient) -> str:
        events.append("begin")
        await asyncio.sleep(0.01)
        events.append("end")
        if len(events) == 2:
            raise httpx.ConnectError("no server")
        return "answered"

    monkeypatch.setattr(ClientRequest, "send", send)
    monkeypatch.setattr(ResourceUsage, "of", lambda *_: IDLE)
    server = RunningServer("http://x", 1)
    outcomes, usages = asyncio.run(soak._send_requests(server, 0.1, 4, 0, lambda _: None))
    assert events[: 2 * kinds] == ["begin", "end"] * kinds
    assert events[2 * kinds :][:2] == ["begin", "begin"]
    assert outcomes["no server"] == 1
    assert outcomes["answered"] == len(events) // 2 - 1
    assert set(usages) == {IDLE}


def test_memory_may_grow_by_the_slack_only() -> None:
    allowed = replace(IDLE, memory=int(IDLE.memory * (1 + resource_usage.SLACK)))
    assert allowed.growth(IDLE) == []
    assert replace(allowed, memory=allowed.memory + 1).growth(IDLE) == [
        "memory: 100,000,000 before, 105,000,001 after"
    ]


def test_a_server_that_stays_busy_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    usages = iter([replace(IDLE, running=1), replace(IDLE, sockets=2), IDLE])
    monkeypatch.setattr(soak, "_REST", 0.0)
    monkeypatch.setattr(ResourceUsage, "of", lambda *_: next(usages))
    assert soak._idle_usage(RunningServer("http://x", 1)) == IDLE  # the first two are busy
    monkeypatch.setattr(soak, "_IDLE_TIMEOUT", 0.0)
    monkeypatch.setattr(ResourceUsage, "of", lambda *_: replace(IDLE, waiting=1))
    with pytest.raises(BenchError, match="not idle a minute after its clients"):
        soak._idle_usage(RunningServer("http://x", 1))


def test_requests_are_of_every_kind_and_some_clients_disconnect() -> None:
    draw = random.Random(0)
    requests = [ClientRequest.draw(draw) for _ in range(1000)]
    kinds = {(request.path, "best_of" in request.body) for request in requests}
    assert len(kinds) == 4
    waiting = [r for r in requests if r.lines is None and r.timeout is None and not r.pause]
    assert 400 < len(waiting) < 600
    assert sum(request.lines is not None for request in requests) > 100
    assert sum(request.timeout is not None for request in requests) > 100
    assert sum(request.pause > 0 for request in requests) > 50


@pytest.mark.parametrize("name", ["running", "waiting", "pages", "in_flight"])
def test_a_server_with_requests_is_not_idle(name: str) -> None:
    assert IDLE.is_idle
    assert not replace(IDLE, **{name: getattr(IDLE, name) + 1}).is_idle
