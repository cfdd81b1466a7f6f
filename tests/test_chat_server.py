"""`chat --server` gives the answers of `chat`, from the model of a running `serve`."""

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
QUESTION = ("--prompt", "what does rmsnorm do?", "--temp", "0")


def chat(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(CHAT), *options], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--api-key", "sesame") as running:
        yield running


def test_the_answer_is_the_one_of_the_model_here(server: Server) -> None:
    there = chat(*QUESTION, "--server", server.url, "--api-key", "sesame")
    assert there.returncode == 0, there.stderr
    assert there.stdout == chat(*QUESTION).stdout
    assert server.url in there.stderr


def test_figures_come_from_the_server(server: Server) -> None:
    done = chat(*QUESTION, "--server", f"{server.url}/v1", "--api-key", "sesame", "--json")
    record = json.loads(done.stdout)
    assert "root mean square" in record["answer"]
    assert (record["server"], record["model"]) == (server.url, "pico")
    assert record["tokens"]["generated"] > 10
    assert record["tokens"]["prompt"] > 10
    assert record["timings"]["decode_rate"] > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "no valid API key"),
        (("--api-key", "sesame", "--model", "other"), "the server has pico, not 'other'"),
        (("--api-key", "sesame", "--ops", "cpu"), "--ops: not beside --server"),
    ],
)
def test_what_goes_wrong_is_one_line(server: Server, options: tuple[str, ...], says: str) -> None:
    done = chat(*QUESTION, "--server", server.url, *options)
    assert done.returncode in (1, 2)
    (line,) = done.stderr.splitlines()
    assert line.startswith("chat: ")
    assert says in line


def test_a_server_that_is_not_there(server: Server) -> None:
    done = chat(*QUESTION, "--server", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert "cannot reach http://127.0.0.1:1" in done.stderr


class BreaksOff(BaseHTTPRequestHandler):
    """A server that dies in the middle of an answer."""

    def do_GET(self) -> None:
        self._say(b'{"data": [{"id": "pico"}]}')

    def do_POST(self) -> None:
        self._say(b'data: {"choices": [{"delta": {"content": "Half an"}}]}\n\n')

    def log_message(self, *_arguments: object) -> None:
        """Stay silent."""

    def _say(self, text: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text)


def test_half_an_answer_is_no_answer() -> None:
    with HTTPServer(("127.0.0.1", 0), BreaksOff) as broken:
        Thread(target=broken.serve_forever, daemon=True).start()
        done = chat(*QUESTION, "--server", f"http://127.0.0.1:{broken.server_port}")
        broken.shutdown()
    assert done.returncode == 1
    assert done.stdout.strip() == "Half an"
    assert "broke off in the middle" in done.stderr
