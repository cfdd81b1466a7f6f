"""Clients that send a body only after `100 Continue` (RFC 9110, section 10.1.1)."""

import contextlib
import socket
from collections.abc import Iterator
from http.client import HTTPResponse
from urllib.parse import urlsplit

import pytest
from tinyllm_serve.testing import Server

POST = (
    b"POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer first\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n"
)
EXPECT = b"Expect: 100-continue\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextlib.contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        yield connection


def response(connection: socket.socket) -> tuple[int, str | None]:
    """Read a response; return its status and its Connection header."""
    with HTTPResponse(connection) as answer:
        answer.begin()
        answer.read()
        return answer.status, answer.getheader("connection")


@pytest.mark.parametrize(
    ("path", "length", "status"),
    [(b"/tokenize", 60_000, 413), (b"/nothing", 100, 404), (b"/v1/models", 100, 405)],
)
def test_a_refused_body_that_is_not_sent_ends_the_connection(
    path: bytes, length: int, status: int, guarded: Server
) -> None:
    with connected(guarded) as connection:
        connection.sendall(POST % (path, length) + EXPECT + b"\r\n")
        assert response(connection) == (status, "close")
        assert connection.recv(1) == b""


def test_an_accepted_body_is_asked_for_and_keeps_the_connection(guarded: Server) -> None:
    body = b'{"prompt": "a"}'
    with connected(guarded) as connection:
        connection.sendall(POST % (b"/tokenize", len(body)) + EXPECT + b"\r\n")
        asked = b""
        while not asked.endswith(b"\r\n\r\n"):
            asked += connection.recv(1)
        assert asked.startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert response(connection) == (200, None)
        connection.sendall(HEALTH)
        assert response(connection) == (200, None)


@pytest.mark.parametrize("expect", [b"", EXPECT])
def test_a_refused_body_that_is_sent_keeps_the_connection(expect: bytes, guarded: Server) -> None:
    """The server skips the body. A close could delete the response before the client reads it."""
    with connected(guarded) as connection:
        connection.sendall(POST % (b"/tokenize", 60_000) + expect + b"\r\n" + b" " * 60_000)
        assert response(connection) == (413, None)
        connection.sendall(HEALTH)
        assert response(connection) == (200, None)
