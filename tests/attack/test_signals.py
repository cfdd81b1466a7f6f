"""SIGTERM and SIGINT in every phase under load, and kill -9 beside a file of the prefix cache."""

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest
from attack import bodies
from attack.victim import CHAT, GOOD, Victim

DRAIN = 3
"""Seconds of --timeout-graceful-shutdown."""

SLACK = 12.0
"""Seconds that an end may take besides, on a slow machine: it frees gigabytes of Python objects."""

LONG = [{"role": "user", "content": "what is attention? " * 250}]
ENDLESS = bodies.chat(max_tokens=1900, ignore_eos=True, stream=True, n=16)

PHASES: dict[str, list[tuple[str, bytes]]] = {
    "idle": [],
    "decode": [(CHAT, ENDLESS)] * 8,
    "prefill": [(CHAT, bodies.chat(messages=LONG, stream=True, n=4))] * 16,
    "queue": [("/v1/completions", bodies.many_choices(stream=True))] * 3,
    "tokenizer": [(CHAT, b'{"messages":[{"role":"user","content":"' + b"ab " * 10**6 + b'"}]}')],
    "grammar": [(CHAT, bodies.with_schema(bodies.properties(2000)))],
    "embeddings": [("/v1/embeddings", bodies.embeddings())] * 4,
    "validation": [(CHAT, bodies.repeated('{"messages":[', "{}", "]}", 2_000_000))],
}


@contextmanager
def loaded(victim: Victim, requests: list[tuple[str, bytes]]) -> Iterator[list[socket.socket]]:
    """Send requests, each on its own connection, and read nothing."""
    connections = [victim.connect() for _ in requests]
    try:
        for connection, (path, body) in zip(connections, requests, strict=True):
            connection.sendall(victim.raw(path, body))
        yield connections
    finally:
        for connection in connections:
            connection.close()


def end(victim: Victim, *signals: signal.Signals, pause: float = 0.3) -> float:
    """Send signals, wait for exit code 0, and return the seconds from the first signal."""
    start = time.monotonic()
    for number in signals:
        victim.server.process.send_signal(number)
        time.sleep(pause)
    assert victim.server.wait(DRAIN + SLACK + 60) == 0
    victim.check_log()
    return time.monotonic() - start


def started() -> Victim:
    """Start a server with a short drain."""
    return Victim("--timeout-graceful-shutdown", str(DRAIN), watched=False)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_ends_the_server(phase: str, number: signal.Signals) -> None:
    for delay in (0.0, 0.1, 1.0):
        with started() as victim, loaded(victim, PHASES[phase]):
            time.sleep(delay)
            assert end(victim, number) < DRAIN + SLACK


@pytest.mark.full
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3, 0.6, 1.0])
def test_a_signal_while_loading_ends_the_server(delay: float) -> None:
    with Victim(ready=False, watched=False) as victim:
        time.sleep(delay)
        assert end(victim, signal.SIGTERM) < SLACK


@pytest.mark.full
def test_a_signal_under_mixed_load_ends_the_server_after_the_drain() -> None:
    mixed = [request for requests in PHASES.values() for request in requests[:4]]
    with started() as victim, loaded(victim, mixed):
        time.sleep(0.5)
        assert end(victim, signal.SIGTERM) < DRAIN + SLACK


@pytest.mark.full  # the tests of serve have this case and the next one
def test_an_answer_is_finished_before_the_end() -> None:
    body = bodies.chat(max_tokens=300, ignore_eos=True, stream=True)
    with Victim(watched=False) as victim, loaded(victim, [(CHAT, body)]) as (connection,):
        received = connection.recv(1 << 16)
        victim.server.process.send_signal(signal.SIGTERM)
        while more := connection.recv(1 << 16):
            received += more
        assert b"data: [DONE]" in received
        assert victim.server.wait() == 0


@pytest.mark.full
@pytest.mark.parametrize("signals", [(signal.SIGTERM, signal.SIGINT)])
def test_a_second_signal_ends_the_server_at_once(signals: tuple[signal.Signals, ...]) -> None:
    with Victim("--timeout-graceful-shutdown", "600", watched=False) as victim:
        requests = PHASES["decode"] + PHASES["queue"]
        with loaded(victim, requests):
            time.sleep(0.5)
            assert end(victim, *signals) < SLACK


@pytest.mark.parametrize("stall", [8, pytest.param(30, marks=pytest.mark.full)])
def test_a_signal_is_not_lost_while_the_event_loop_is_busy(stall: int) -> None:
    # Each step of the engine writes to the pipe that wakes the event loop, and so does a signal.
    heavy = [(CHAT, bodies.repeated('{"messages":[', "{}", "]}", 1_000_000))] * stall
    with started() as victim, loaded(victim, PHASES["decode"]) as streams:
        for stream in streams:
            Thread(target=drained, args=(stream,), daemon=True).start()
        with loaded(victim, heavy):
            time.sleep(0.5)
            assert end(victim, signal.SIGTERM) < 60


def drained(connection: socket.socket) -> None:
    """Read everything that a connection sends."""
    with suppress(OSError):
        while connection.recv(1 << 16):
            pass


def cached(victim: Victim) -> int:
    """Return how many tokens of a long prompt are in the prefix cache."""
    usage = victim.post(CHAT, bodies.chat(messages=LONG, max_tokens=1), GOOD).json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.full
def test_kill_9_leaves_a_prefix_cache_that_can_be_loaded(tmp_path: Path) -> None:
    options = ("--prefix-cache-path", str(tmp_path / "prefixes"))
    with Victim(*options, watched=False) as victim:
        assert cached(victim) == 0
        end(victim, signal.SIGTERM)
    for delay in (0.0, 0.02, 0.05, 0.1, 0.2, 0.5):
        with Victim(*options, watched=False) as victim:
            assert cached(victim) > 0
            with loaded(victim, PHASES["decode"]):
                time.sleep(delay)
                victim.server.process.kill()
        with Victim(*options, watched=False) as victim, loaded(victim, PHASES["decode"]):
            victim.server.process.send_signal(signal.SIGTERM)  # the file is written at the end
            time.sleep(delay)
            victim.server.process.kill()
    with Victim(*options, watched=False) as victim:
        assert cached(victim) > 0
        victim.check()
