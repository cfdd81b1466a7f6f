"""Slow and silent clients hold neither connections nor memory, and do not delay the shutdown."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from tinyllm_serve import server as serving
from tinyllm_serve.http.sse import EventStream
from tinyllm_serve.server import listen
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings
from tinyllm_serve.testing import Server

Start = Callable[..., Server]
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


@contextlib.contextmanager
def connections(server: Server, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """Open connections that have sent some bytes."""
    address = urlsplit(server.url)
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            connection = socket.create_connection((address.hostname, address.port), timeout=60)
            opened.append(stack.enter_context(connection))
            with contextlib.suppress(OSError):  # the server may have closed it
                connection.sendall(sent)
        yield opened


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Return True if the server closes a connection, whatever it sends before."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def health(server: Server) -> float:
    start = time.monotonic()
    assert httpx.get(f"{server.url}/health", timeout=30).status_code == 200
    return time.monotonic() - start


def megabytes(server: Server) -> float:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1000


def closed(server: Server, reason: str) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    name = f'tinyllm:http_connections_closed_total{{reason="{reason}"}} '
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: lo"])
def test_idle_sockets_make_room_for_clients(start: Start, sent: bytes) -> None:
    server = start("--max-connections", "20", "--timeout-headers", "60")
    with connections(server, 40, sent):
        assert health(server) < 5
        assert closed(server, "evicted") >= 20
        assert server.metric("http_connections") <= 21


def test_a_connection_too_many_gets_a_503(start: Start) -> None:
    server = start("--max-connections", "2")
    fields = {"max_tokens": 1900, "stream": True, "ignore_eos": True}
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    with connections(server, 2, HEAD % len(body) + body) as running:
        for each in running:
            assert each.recv(1)
        answer = httpx.get(f"{server.url}/health")
        assert answer.status_code == 503
        assert answer.headers["Retry-After"] == "5"
        assert "too many connections" in answer.json()["error"]["message"]


def test_headers_that_do_not_end_are_cut_off(start: Start) -> None:
    server = start("--timeout-headers", "0.5", "--timeout-keep-alive", "1")
    for sent in (
        b"",
        b"GET /health HTTP/1.1\r\nHost: lo",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
    ):
        with connections(server, 1, sent) as (connection,):
            assert is_closed(connection, 10), sent


def test_a_body_that_does_not_end_gets_a_408(start: Start) -> None:
    server = start("--timeout-body", "0.5", "--timeout-headers", "0.5")
    with connections(server, 1, HEAD % 100 + b"{") as (connection,):
        assert b" 408 " in connection.recv(65536)
        assert is_closed(connection, 20)


def test_all_bodies_together_have_a_bound(start: Start) -> None:
    server = start("--max-body-memory", "5000000", "--timeout-body", "60")
    before = megabytes(server)
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1})
    with connections(server, 20, HEAD % 2_000_000 + b" " * 1_900_000):
        assert health(server) < 5
        url = f"{server.url}/v1/chat/completions"
        kind = {"Content-Type": "application/json"}
        assert httpx.post(url, content=body, headers=kind).status_code == 200
        answer = httpx.post(url, content=" " * 2_000_000 + body, headers=kind)
        assert answer.status_code == 503
        assert "too many long bodies" in answer.json()["error"]["message"]
        assert megabytes(server) - before < 30  # 38 MB are sent
    server.wait_until("http_requests_in_flight", 1.0)  # that of the metrics
    assert httpx.post(url, content=" " * 2_000_000 + body, headers=kind).status_code == 200


def test_a_client_that_does_not_read_is_disconnected(endless: Path, start: Start) -> None:
    options = ("--max-tokens", "100000", "--kv-cache-memory", "0.2", "--timeout-write", "1")
    server = start("--model", str(endless), *options)
    fields = {"messages": [{"role": "user", "content": "a"}], "stream": True, "n": 16}
    body = json.dumps({**fields, "logprobs": True, "top_logprobs": 20}).encode()
    with connections(server, 1, HEAD % len(body) + body):
        server.wait_until("num_requests_running", 16.0)
        # The answer ends with too many unread tokens, or with the connection.
        server.wait_until("num_requests_running", 0.0, 90.0)
        deadline = time.monotonic() + 10
        while not closed(server, "write") and time.monotonic() < deadline:
            time.sleep(0.1)
        assert closed(server, "write") == 1


def test_slow_clients_do_not_hold_up_the_shutdown(start: Start) -> None:
    server = start("--timeout-headers", "60", "--timeout-body", "60")
    with (
        connections(server, 10, b""),
        connections(server, 10, b"GET /hea"),
        connections(server, 30, HEAD % 9_800_000 + b" " * 100_000),
    ):
        health(server)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10  # 30 s are allowed for answers


class Endless(Service):
    """A model whose requests never finish, and do not end with it."""

    async def start(self) -> None:
        self._state = "ready"

    def facts(self) -> dict[str, str | float | None]:
        return {}

    async def finish(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


def test_forwarded_headers_do_not_choose_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["client"], scope["scheme"]))
        await Response("")(scope, receive, send)

    def ask(address: tuple[str, int]) -> tuple[str, int]:
        lines = (
            b"GET / HTTP/1.1",
            b"Host: localhost",
            b"X-Forwarded-For: 192.0.2.1",
            b"X-Forwarded-Proto: https",
        )
        with socket.create_connection(address) as connection:
            connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n")
            assert b" 200 " in connection.recv(65536)
            host, port = connection.getsockname()
            return host, port

    async def exchange() -> tuple[str, int]:
        settings = Settings()
        listener = listen("127.0.0.1", 0)
        monkeypatch.setattr(serving, "listen", lambda *_address: listener)
        server = asyncio.create_task(serving.serve(settings, Endless(settings), application))
        address = await asyncio.to_thread(ask, listener.getsockname())
        for _signal in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.1)
        await server
        return address

    address = asyncio.run(exchange())
    assert seen == [(address, "http")]


def test_the_end_closes_a_stream_that_nobody_reads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent = 0

    async def events() -> AsyncGenerator[dict[str, object], None]:
        nonlocal sent
        while True:
            yield {"text": "a" * 100_000}
            sent += 1
            await asyncio.sleep(0)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await EventStream(events(), 60.0)(scope, receive, send)

    async def end_with_a_reader_that_sleeps() -> None:
        settings = Settings()
        listener = listen("127.0.0.1", 0)
        monkeypatch.setattr(serving, "listen", lambda *_address: listener)
        server = asyncio.create_task(serving.serve(settings, Endless(settings), application))
        with socket.create_connection(listener.getsockname()) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            before = -1
            while sent != before:
                before = sent
                await asyncio.sleep(0.3)
            assert sent > 0
            for _signal in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.1)
            await server

    with caplog.at_level(logging.ERROR):
        asyncio.run(end_with_a_reader_that_sleeps())
    assert not caplog.records


def test_responses_do_not_wait_for_acknowledgements() -> None:
    with listen("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        with socket.create_connection(address), listener.accept()[0] as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
