"""Disconnects, back pressure, shutdown, many requests at once, and the log."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from openai.types.responses import ResponseErrorEvent
from tinyllm_serve.application import make_application
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings
from tinyllm_serve.testing import Server

CHAT = "/v1/chat/completions"
COMPUTING = """
import threading, time
import mlx.core as mx
from tinyllm_serve import cli

def compute():
    while True:
        with mx.stream(mx.new_stream(mx.cpu)):
            mx.eval(mx.ones((64, 64)) @ mx.ones((64, 64)))

threading.Thread(target=compute, name="engine", daemon=True).start()
time.sleep(0.2)
cli.main = lambda program: 3
cli.run_process()
"""
"""A program whose engine begins to compute again and again."""
STARTING = """
import os, signal, sys, time
from tinyllm_serve import cli

number = int(sys.argv.pop())
default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
signal.signal(number, default)  # a shell ignores some signals of programs in the background

def run(settings):
    try:
        os.kill(os.getpid(), number)
        time.sleep(30)
    except BaseException:  # some libraries do so while they are imported
        os._exit(3)

cli.run = run
cli.run_process()
"""
"""A program that gets a signal while it imports the server."""
HELLO = [{"role": "user", "content": "hello"}]
ENDLESS = ("--max-tokens", "100000", "--kv-cache-memory", "0.2")
Start = Callable[..., Server]


@contextmanager
def asking(server: Server, **fields: object) -> Iterator[socket.socket]:
    """Send a request, and yield the connection before anything is read."""
    address = urlsplit(server.url)
    body = json.dumps({"messages": HELLO, **fields}).encode()
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        yield connection


def read_until(connection: socket.socket, text: bytes, count: int = 1) -> bytes:
    connection.settimeout(30)
    received = b""
    while received.count(text) < count:
        more = connection.recv(65536)
        assert more, received
        received += more
    return received


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_frees_the_pages(busy: Server, stream: bool) -> None:
    with asking(busy, stream=stream) as connection:
        if stream:
            read_until(connection, b"data: ", 5)
        busy.wait_until("num_requests_running", 1.0)
        assert busy.metric("kv_cache_pages_used") > 0
    busy.wait_until("num_requests_running", 0.0)
    busy.wait_until("kv_cache_pages_used", 0.0)


def test_a_disconnect_in_the_queue_or_the_prompt_frees_the_pages(busy: Server) -> None:
    prompt = [{"role": "user", "content": "a" * 100_000}]
    with asking(busy, stream=True) as first, asking(busy, stream=True) as second:
        read_until(first, b"data: ")
        read_until(second, b"data: ")
        with asking(busy), asking(busy, stream=True):
            busy.wait_until("num_requests_waiting", 2.0)
        busy.wait_until("num_requests_waiting", 0.0)
    busy.wait_until("num_requests_running", 0.0)
    with asking(busy, messages=prompt, stream=True):
        busy.wait_until("num_requests_running", 1.0)
    busy.wait_until("num_requests_running", 0.0)
    busy.wait_until("kv_cache_pages_used", 0.0)


def test_a_disconnect_ends_all_answers_of_a_request(busy: Server) -> None:
    with asking(busy, stream=True, n=2) as connection:
        read_until(connection, b'"index":1')
        busy.wait_until("num_requests_running", 2.0)
    busy.wait_until("num_requests_running", 0.0)


def test_a_slow_reader_does_not_delay_other_requests(busy: Server) -> None:
    with asking(busy, stream=True, max_tokens=20_000) as slow:
        read_until(slow, b"data: ")
        start_time = time.monotonic()
        answer = httpx.post(busy.url + CHAT, json={"messages": HELLO, "max_tokens": 20}, timeout=30)
        assert answer.json()["usage"]["completion_tokens"] == 20
        assert time.monotonic() - start_time < 15


def test_a_full_queue_answers_429_and_a_waiting_stream_gets_comments(
    start: Start, endless: Path
) -> None:
    options = ("--max-num-seqs", "1", "--max-waiting", "1", "--sse-keep-alive", "0.2")
    server = start("--model", str(endless), *ENDLESS, *options)
    with asking(server, stream=True) as first:
        read_until(first, b"data: ")
        with asking(server, stream=True) as second:
            server.wait_until("num_requests_waiting", 1.0)
            refused = httpx.post(server.url + CHAT, json={"messages": HELLO, "stream": True})
            received = read_until(second, b": keep-alive\n\n", 3)
    assert received.startswith(b"HTTP/1.1 200")
    assert b"data: " not in received
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "engine_full"
    assert int(refused.headers["retry-after"]) >= 1


def test_health_and_models_are_unavailable_while_the_model_is_loaded() -> None:
    paths = ("/health", "/ready", "/v1/models", "/v1/models/pico")

    async def answers() -> list[list[httpx.Response]]:
        service = Service(Settings())
        transport = httpx.ASGITransport(make_application(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            before = [await client.get(path) for path in paths]
            await service.start()
            try:
                return [before, [await client.get(path) for path in paths]]
            finally:
                await service.close()

    for before, after in zip(*asyncio.run(answers()), strict=True):
        assert (before.status_code, after.status_code) == (503, 200)
        assert "still being loaded" in before.json()["error"]["message"]
        assert int(before.headers["retry-after"]) >= 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_server_listens_is_an_ordinary_end(number: int) -> None:
    command = [sys.executable, "-c", STARTING, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_sigterm_finishes_running_requests(start: Start, endless: Path) -> None:
    server = start("--model", str(endless), "--kv-cache-memory", "0.2")
    with asking(server, stream=True, max_tokens=4000) as connection:
        read_until(connection, b"data: ", 3)
        os.kill(server.process.pid, signal.SIGTERM)
        server.wait_for("draining")
        refused = httpx.post(server.url + CHAT, json={"messages": HELLO})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert httpx.get(f"{server.url}/ready").status_code == 503
        assert httpx.get(f"{server.url}/health").json()["state"] == "draining"
        received = read_until(connection, b"data: [DONE]")
    assert b'"finish_reason":"length"' in received
    assert server.wait() == 0


@pytest.mark.parametrize("again", [True, False])
def test_a_second_signal_or_the_timeout_ends_running_requests(
    start: Start, endless: Path, again: bool
) -> None:
    drain = "60" if again else "0.5"
    server = start("--model", str(endless), *ENDLESS, "--timeout-graceful-shutdown", drain)
    body = {"input": HELLO, "stream": True}
    with (
        asking(server, stream=True) as connection,
        httpx.stream("POST", f"{server.url}/v1/responses", json=body) as response,
    ):
        lines = response.iter_lines()
        assert next(lines) == "event: response.created"
        read_until(connection, b"data: ", 3)
        start_time = time.monotonic()
        os.kill(server.process.pid, signal.SIGTERM)
        server.wait_for("draining")
        if again:
            os.kill(server.process.pid, signal.SIGTERM)
        assert server.wait() == 0
        assert time.monotonic() - start_time < 20
        if not again:
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
            numbers = [event["sequence_number"] for event in events]
            assert numbers == list(range(len(events)))
            error, failed = events[-2:]
            assert ResponseErrorEvent.model_validate(error).code == "unavailable"
            assert error["error"]["message"] == failed["response"]["error"]["message"]
            assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
            assert failed["response"]["error"]["code"] == "unavailable"


def test_two_hundred_streams_at_once(pico: Server) -> None:
    async def ask(client: httpx.AsyncClient, place: int) -> str:
        body = {
            "messages": [{"role": "user", "content": f"what is attention? ({place % 7})"}],
            "stream": True,
            "max_tokens": 4 + place % 5,
        }
        text = ""
        async with client.stream("POST", pico.url + CHAT, json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    choice = json.loads(line[6:])["choices"][0]
                    text += choice["delta"].get("content", "")
        return text

    async def all_of_them() -> list[str]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=120) as client:
            return await asyncio.gather(*(ask(client, place) for place in range(200)))

    answers = asyncio.run(all_of_them())
    # Equal requests get equal answers, in any batch.
    for place in range(200 - 35):
        assert answers[place] == answers[place + 35]
    pico.wait_until("num_requests_running", 0.0)
    pico.wait_until("kv_cache_pages_used", 0.0)


def test_the_log_has_each_request_without_its_text(pico: Server) -> None:
    secret = "my password is swordfish"
    body = {"messages": [{"role": "user", "content": secret}], "max_tokens": 3, "user": "me"}
    mistake = {"messages": [{"role": "tool", "content": secret}]}
    answers = [
        httpx.post(pico.url + CHAT, json=body),
        httpx.post(pico.url + CHAT, json=body | {"stop": [3]}),
        httpx.post(pico.url + CHAT, json=mistake),
        httpx.post(pico.url + CHAT, json=body | {"swordfish": 1}),
        httpx.get(f"{pico.url}/{secret}"),
    ]
    done, *refused = [
        pico.wait_for("request", id=answer.headers["x-request-id"]) for answer in answers
    ]
    assert (done["path"], done["status"], done["user"]) == (CHAT, 200, "me")
    assert (done["completion_tokens"], done["finish_reasons"]) == (3, ["length"])
    assert [each["status"] for each in refused] == [400, 400, 400, 404]
    assert [(each.get("code"), each.get("param")) for each in refused] == [
        ("invalid_value", "stop"),
        ("missing_parameter", "messages"),
        ("unknown_parameter", None),
        (None, None),
    ]
    assert "swordfish" not in json.dumps(pico.log())


def test_a_grammar_that_never_ends_is_an_error_and_its_text_is_not_logged(pico: Server) -> None:
    rules = 'start: "swordfish" nothing\nnothing: nothing'
    body = {"messages": HELLO, "max_tokens": 60, "structured_outputs": {"grammar": rules}}
    answer = httpx.post(pico.url + CHAT, json=body)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "grammar_limit"
    assert "swordfish" not in answer.text + json.dumps(pico.log())
    after = httpx.get(f"{pico.url}/v1/models")  # its line comes after a traceback
    pico.wait_for("request", id=after.headers["x-request-id"])
    assert not [entry for entry in pico.log() if entry.get("error") == "GrammarLimitError"]


def test_a_process_ends_while_its_engine_computes() -> None:
    """An ordinary exit would abort it."""
    assert subprocess.run([sys.executable, "-c", COMPUTING], check=False).returncode == 3
