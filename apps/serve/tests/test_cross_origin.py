"""Requests of a web page of another origin, in a real browser."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from selenium.webdriver import Chrome
from tinyllm_serve.testing import Server

# The headers that OpenAI's JavaScript SDK sends from a browser.
SDK = {
    "Authorization": "Bearer secret",
    "Content-Type": "application/json",
    "X-Stainless-Arch": "unknown",
    "X-Stainless-Lang": "js",
    "X-Stainless-OS": "Unknown",
    "X-Stainless-Package-Version": "6.0.0",
    "X-Stainless-Retry-Count": "0",
    "X-Stainless-Runtime": "browser:chrome",
    "X-Stainless-Runtime-Version": "1.0.0",
    "X-Stainless-Timeout": "600",
}
ASK = """
const [url, headers, done] = arguments
const body = JSON.stringify({messages: [{role: "user", content: "hello"}], max_tokens: 4})
fetch(url + "/v1/chat/completions", {method: "POST", headers, body}).then(
  async answer => done([answer.status, await answer.json(), answer.headers.get("x-request-id")]),
  error => done([0, String(error), null]))
"""


class Page(BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write no log."""


@pytest.fixture
def origin() -> Iterator[str]:
    """The origin of a web page on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_page_of_an_allowed_origin_asks_as_the_sdk_does(
    browser: Chrome, origin: str, start: Callable[..., Server]
) -> None:
    server = start("--allowed-origins", origin, "--api-key", "secret")
    browser.get(origin)
    status, answer, identity = browser.execute_async_script(ASK, server.url, SDK)
    assert status == 200, answer
    assert answer["choices"][0]["message"]["content"]
    assert identity.startswith("req-"), "the page can read the request's id"


def test_a_page_of_another_origin_cannot_read_answers(
    browser: Chrome, origin: str, start: Callable[..., Server]
) -> None:
    server = start("--allowed-origins", "https://a.example", "--api-key", "secret")
    browser.get(origin)
    status, error, _ = browser.execute_async_script(ASK, server.url, SDK)
    assert (status, error) == (0, "TypeError: Failed to fetch")
