"""Requests that are costly to parse are refused, and delay no other client."""

import contextlib
import gzip
import re
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest
from tinyllm_serve.testing import Server

POST = (
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Connection: close\r\n"
)


def exchange(server: Server, sent: bytes, step: int = 1 << 20) -> bytes:
    """Send bytes in steps, and return the response, as far as it comes."""
    address = urlsplit(server.url)
    received = b""
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for start in range(0, len(sent), step):
                connection.sendall(sent[start : start + step])
                time.sleep(0.002)  # so that the server reads each step alone
            while more := connection.recv(65536):
                received += more
        except ConnectionError:  # the server does not read the rest
            pass
    return received


def chunked(body: bytes, length: int) -> bytes:
    """Return a request whose body comes in chunks of a length."""
    parts = [body[start : start + length] for start in range(0, len(body), length)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def test_small_chunks_are_refused_and_delay_no_other_client(pico: Server) -> None:
    address = urlsplit(pico.url)
    sent = chunked(b" " * 400_000, 1)
    opened = []
    for _ in range(8):
        connection = socket.create_connection((address.hostname, address.port))
        connection.setblocking(False)
        connection.send(sent)
        opened.append(connection)
    began = time.monotonic()
    assert httpx.get(f"{pico.url}/health", timeout=60).status_code == 200
    assert time.monotonic() - began < 0.7
    for connection in opened:
        connection.close()


@pytest.mark.parametrize("length", [1, 256, 65536])
def test_chunks_of_a_client_are_accepted(length: int, pico: Server) -> None:
    text = "a b " * (100 if length == 1 else 50_000)
    body = b'{"prompt": "%s"}' % text.encode()
    assert exchange(pico, chunked(body, length)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(b"".join(b"a%d: b\r\n" % number for number in range(200)), id="many"),
        pytest.param(b"a: " + b"b" * 100_000 + b"\r\n", id="long"),
    ],
)
def test_costly_headers_are_refused(headers: bytes, pico: Server) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n"
    assert exchange(pico, request)[:12] in (b"HTTP/1.1 400", b"")


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(b"", id="first"),
        pytest.param(GET + b"\r\n", id="pipelined"),
        pytest.param(GET + b"Content-Length: 20000\r\n\r\n" + b" " * 20_000, id="after-a-body"),
    ],
)
@pytest.mark.parametrize(
    ("length", "step", "status"),
    [
        (16_384, 1 << 20, b"200"),
        (16_384, 1000, b"200"),
        (16_385, 1 << 20, b"400"),
        (16_385, 1000, b"400"),
        (32_000, 1 << 20, b"400"),
    ],
)
def test_headers_have_at_most_16384_bytes(
    length: int, step: int, status: bytes, before: bytes, pico: Server
) -> None:
    start = GET + b"Connection: close\r\na: "
    head = start + b"b" * (length - len(start) - 4) + b"\r\n\r\n"
    answer = exchange(pico, before + head, step)
    statuses = re.findall(rb"HTTP/1.1 (\d+)", answer)
    assert statuses == ([b"200", status] if before else [status])


def test_a_body_with_two_lengths_is_refused(pico: Server) -> None:
    """A proxy that counts the body by the other length would see a second request in it."""
    sent = POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert exchange(pico, sent).startswith(b"HTTP/1.1 400")


def test_a_long_method_is_shortened_in_the_answer_and_the_log(pico: Server) -> None:
    seen = len(pico.log())
    head = b" /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = exchange(pico, b"A" * 15_000 + head)
    assert answer.startswith(b"HTTP/1.1 405")
    assert len(answer) < 1000
    assert all(len(str(entry)) < 1000 for entry in pico.log()[seen:])


def test_a_compressed_body_is_refused(pico: Server) -> None:
    sent = gzip.compress(b'{"prompt": "a"}')
    answer = httpx.post(f"{pico.url}/tokenize", content=sent, headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, "without compression" in answer.text) == (415, True)


def test_a_wrong_chunk_after_the_response_ends_the_connection_quietly(pico: Server) -> None:
    seen = len(pico.log())
    address = urlsplit(pico.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        head = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head)
        assert connection.recv(65536).startswith(b"HTTP/1.1 404")
        connection.sendall(b"no chunk\r\n")
        with contextlib.suppress(ConnectionError):
            while connection.recv(65536):
                pass
    assert [entry for entry in pico.log()[seen:] if "error" in entry] == []
