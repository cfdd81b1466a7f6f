"""`chat --server` gives the answers of `chat`, and its errors are one line."""

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tinyllm_serve.testing import Server

CHAT = Path(sys.executable).parent / "chat"
QUESTION = ("--prompt", "what does rmsnorm do?", "--temperature", "0")


def chat(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(CHAT), *options], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--api-key", "sesame") as running:
        yield running


def test_the_server_gives_the_answer_of_the_local_model(server: Server) -> None:
    remote = chat(*QUESTION, "--server", server.url, "--api-key", "sesame")
    assert remote.returncode == 0, remote.stderr
    assert remote.stdout == chat(*QUESTION).stdout
    assert server.url in remote.stderr


def test_without_max_tokens_the_server_limits_the_answer() -> None:
    with Server("--kv-cache-memory", "0.001", "--max-tokens", "4") as small:
        done = chat(*QUESTION, "--server", small.url)
    assert done.returncode == 0, done.stderr
    assert "cut off after 4 tokens (the limit of the server)" in done.stderr


def test_json_has_the_statistics_of_the_server(server: Server) -> None:
    done = chat(*QUESTION, "--url", f"{server.url}/v1", "--api-key", "sesame", "--json")
    record = json.loads(done.stdout)
    assert "root mean square" in record["answer"]
    assert (record["server"], record["model"]) == (server.url, "pico")
    assert record["tokens"]["generated"] > 10
    assert record["tokens"]["prompt"] > 10
    assert record["timings"]["decode_rate"] > 0


def test_a_text_that_comes_at_once_has_counts_and_no_rate(server: Server) -> None:
    options = ("--server", server.url, "--api-key", "sesame", "--max-tokens", "2", "--json")
    record = json.loads(chat(*QUESTION, *options).stdout)
    assert record["tokens"]["prompt"] > 10
    assert record["tokens"]["generated"] == 2
    assert record["timings"]["decode_rate"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "no valid API key"),
        (
            ("--api-key", "sesame", "--model", "other"),
            "expected a model of the server (pico), got 'other'",
        ),
        (("--api-key", "sesame", "--ops", "cpu"), "--ops: not allowed with --server"),
    ],
)
def test_an_error_is_one_line(server: Server, options: tuple[str, ...], message: str) -> None:
    done = chat(*QUESTION, "--server", server.url, *options)
    assert done.returncode in (1, 2)
    (line,) = done.stderr.splitlines()
    assert line.startswith("chat: ")
    assert message in line


def test_an_unreachable_server_is_an_error(server: Server) -> None:
    done = chat(*QUESTION, "--server", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert "cannot reach http://127.0.0.1:1" in done.stderr


class BrokenServer(BaseHTTPRequestHandler):
    """A server that closes the connection in the middle of an answer."""

    def do_GET(self) -> None:
        self._send(b'{"data": [{"id": "pico"}]}')

    def do_POST(self) -> None:
        self._send(b'data: {"choices": [{"delta": {"content": "Half an"}}]}\n\n')

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""

    def _send(self, text: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text)


def test_an_incomplete_answer_is_an_error() -> None:
    with HTTPServer(("127.0.0.1", 0), BrokenServer) as broken:
        Thread(target=broken.serve_forever, daemon=True).start()
        done = chat(*QUESTION, "--server", f"http://127.0.0.1:{broken.server_port}")
        broken.shutdown()
    assert done.returncode == 1
    assert done.stdout.strip() == "Half an"
    assert "closed the connection before the answer's end" in done.stderr
