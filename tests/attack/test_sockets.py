"""Connections that never finish a request: many of them cost little, and are closed in the end."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from attack import bodies
from attack.victim import CHAT, Budget, Costs, Victim

Begin = Callable[[Victim, socket.socket], None]

TLS_HELLO = bytes.fromhex("16030100c8010000c403035b") + bytes(200)


def nothing(victim: Victim, connection: socket.socket) -> None:
    """Send nothing."""


def half_a_head(victim: Victim, connection: socket.socket) -> None:
    """Send a part of the head."""
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc")


def half_a_body(victim: Victim, connection: socket.socket) -> None:
    """Send a part of a small body."""
    connection.sendall(victim.raw(CHAT, b'{"messages": [', length=200))


def large_half_of_a_body(victim: Victim, connection: socket.socket) -> None:
    """Send all of a large body but its last byte. The server may close the connection earlier."""
    connection.settimeout(0.2)  # the server reads later bodies later
    with suppress(OSError):
        connection.sendall(victim.raw(CHAT, b" " * 9_800_000, length=9_800_001))


def tls(victim: Victim, connection: socket.socket) -> None:
    """Begin TLS, which the server does not speak."""
    connection.sendall(TLS_HELLO)


def half_closed(victim: Victim, connection: socket.socket) -> None:
    """Close the sending half in the middle of the head."""
    half_a_head(victim, connection)
    connection.shutdown(socket.SHUT_WR)


def no_reader(victim: Victim, connection: socket.socket) -> None:
    """Request a stream, and read nothing of it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    body = bodies.chat(stream=True, max_tokens=1900, ignore_eos=True, n=4)
    connection.sendall(victim.raw(CHAT, body))


@contextmanager
def opened(victim: Victim, count: int, begin: Begin) -> Iterator[list[socket.socket]]:
    """Open connections, and begin a request on each. The server may refuse any of them."""
    with ExitStack() as stack:
        connections = []
        for _ in range(count):
            with suppress(OSError):
                connections.append(stack.enter_context(victim.connect()))
                begin(victim, connections[-1])
        yield connections


def is_closed(connection: socket.socket) -> bool:
    """Read what the server sent, and return True if it has closed the connection."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize(
    ("begin", "count", "memory"),
    [
        pytest.param(nothing, 1100, 100, marks=pytest.mark.full),
        pytest.param(half_a_head, 1100, 100, marks=pytest.mark.full),
        (half_a_body, 1100, 150),
        pytest.param(large_half_of_a_body, 60, 250, marks=pytest.mark.full),
        pytest.param(tls, 1100, 100, marks=pytest.mark.full),
        (half_closed, 1100, 100),
        (no_reader, 20, 100),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_unfinished_requests_cost_little(
    begin: Begin, count: int, memory: float, attacked: Victim, costs: Costs
) -> None:
    def hold(victim: Victim) -> None:
        with opened(victim, count, begin):
            time.sleep(1)
            victim.check()

    name = f"{count:,} connections: {begin.__name__.replace('_', ' ')}"
    budget = Budget(seconds=60.0, memory=memory, kept=150.0, first_token=4.0)
    costs.check(name, attacked, hold, budget)
    attacked.wait_until_idle()


@pytest.mark.full
@pytest.mark.parametrize("begin", [nothing, half_a_head, half_a_body, half_closed])
def test_unfinished_requests_are_closed_in_the_end(begin: Begin, attacked: Victim) -> None:
    end = time.monotonic() + 100
    with opened(attacked, 100, begin) as connections:
        while not all(map(is_closed, connections)):
            assert time.monotonic() < end
            time.sleep(0.5)
    attacked.check()
