"""Requests whose target is a whole URL (RFC 9112, section 3.2.2)."""

import socket
from http.client import HTTPResponse
from urllib.parse import urlsplit

import h11
import pytest
from tinyllm_serve.http.request_target import with_origin_form
from tinyllm_serve.testing import Server


def status(server: Server, head: bytes, body: bytes = b"") -> int:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(head + b"Connection: close\r\n\r\n" + body)
        with HTTPResponse(connection) as answer:
            answer.begin()
            return answer.status


@pytest.mark.parametrize(
    ("target", "host", "expected"),
    [
        (b"http://localhost/health", b"localhost", 200),
        (b"HTTPS://LOCALHOST:443/v1/models?limit=1", b"localhost", 200),
        (b"http://127.0.0.1", b"localhost", 200),
        (b"http://localhost/nothing", b"localhost", 404),
        (b"http://localhost/health", b"evil.example", 200),  # the header is ignored
        (b"http://evil.example/health", b"localhost", 403),
        (b"ftp://localhost/health", b"localhost", 400),
        (b"http:///health", b"localhost", 400),
        (b"http://localhost:port/health", b"localhost", 400),
        (b"http://user@localhost/health", b"localhost", 400),
        (b"http://localhost#a", b"localhost", 400),
        (b"localhost:80", b"localhost", 400),
        (b"health", b"localhost", 400),
        (b"//localhost/health", b"localhost", 404),  # a path
    ],
)
def test_a_target_may_be_a_url(target: bytes, host: bytes, expected: int, pico: Server) -> None:
    assert status(pico, b"GET %s HTTP/1.1\r\nHost: %s\r\n" % (target, host)) == expected


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_url_without_host_header(version: bytes, pico: Server) -> None:
    get = b"GET http://%s/health HTTP/%s\r\n"
    old = version == b"1.0"  # HTTP/1.1 requires the header, also beside a URL
    assert status(pico, get % (b"localhost", version)) == (200 if old else 400)
    assert status(pico, get % (b"evil.example", version)) == (403 if old else 400)


def test_a_body_may_be_sent_to_a_url(pico: Server) -> None:
    body = b'{"prompt": "a"}'
    head = b"POST http://localhost/tokenize HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    assert status(pico, head, body) == 200


@pytest.mark.parametrize(
    ("target", "origin", "host"),
    [
        (b"http://a.b:80/c/d?e=f:g@h", b"/c/d?e=f:g@h", b"a.b:80"),
        (b"http://[::1]:80?e", b"/?e", b"[::1]:80"),
        (b"http://a", b"/", b"a"),
        (b"http://a//b", b"//b", b"a"),
        (b"/c", b"/c", b"before"),
        (b"*", b"*", b"before"),
    ],
)
def test_the_authority_replaces_the_host(target: bytes, origin: bytes, host: bytes) -> None:
    headers = [(b"Accept", b"a"), (b"Host", b"before"), (b"X-B", b"c")]
    request = with_origin_form(h11.Request(method=b"GET", target=target, headers=headers))
    assert (request.method, request.target, request.http_version) == (b"GET", origin, b"1.1")
    assert sorted(request.headers) == [(b"accept", b"a"), (b"host", host), (b"x-b", b"c")]
