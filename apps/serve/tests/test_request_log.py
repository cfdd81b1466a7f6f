"""Log lines and metrics of requests."""

from typing import Any

import httpx
import pytest
from tinyllm_serve.testing import Server

CHAT = "/v1/chat/completions"
KEY = {"Authorization": "Bearer first"}


def logged(server: Server, answer: httpx.Response) -> dict[str, object]:
    """Return path, status and code of the log line of a response."""
    entry = server.wait_for("request", id=answer.headers["x-request-id"])
    return {name: entry.get(name) for name in ("path", "status", "code")}


@pytest.mark.parametrize(
    ("sent", "path"),
    [(CHAT, CHAT), ("/v1/models/a/b", "/v1/models/{name:path}"), ("/nothing", "other")],
)
def test_a_wrong_key_is_logged_with_route_and_code(guarded: Server, sent: str, path: str) -> None:
    answer = httpx.post(guarded.url + sent, headers={"Authorization": "Bearer wrong"})
    assert logged(guarded, answer) == {"path": path, "status": 401, "code": "invalid_api_key"}


def test_a_refused_request_counts_for_its_route(guarded: Server) -> None:
    def refused() -> float:
        text = httpx.get(f"{guarded.url}/metrics", headers=KEY).text
        name = 'tinyllm:http_requests_total{path="/tokenize",status="401"} '
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    before = refused()
    logged(guarded, httpx.post(f"{guarded.url}/tokenize"))
    assert refused() == before + 1


def test_a_refused_body_is_logged_with_its_route(guarded: Server) -> None:
    kinds: list[tuple[int, bytes, dict[str, str]]] = [
        (413, b" " * 60_000, {}),
        (415, b"{}", {"Content-Encoding": "gzip"}),
    ]
    for status, body, headers in kinds:
        answer = httpx.post(guarded.url + CHAT, content=body, headers=KEY | headers)
        # The codes of these errors are null.
        assert logged(guarded, answer) == {"path": CHAT, "status": status, "code": None}


def test_another_host_is_logged_with_route_and_code(pico: Server) -> None:
    answer = httpx.get(f"{pico.url}/health", headers={"Host": "evil.example"})
    assert logged(pico, answer) == {"path": "/health", "status": 403, "code": "host_not_allowed"}


def test_a_prompt_with_several_answers_counts_once(pico: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "n": 3, "max_tokens": 2}
    answer = httpx.post(f"{pico.url}/v1/chat/completions", json=body)
    line = pico.wait_for("request", id=answer.headers["x-request-id"])
    usage = answer.json()["usage"]
    for name in ("prompt_tokens", "completion_tokens"):
        assert line[name] == usage[name]


@pytest.mark.parametrize(
    ("headers", "client_id"),
    [
        ({"X-Request-Id": "my-id-1", "X-Client-Request-Id": "other"}, "my-id-1"),
        ({"X-Client-Request-Id": "mine"}, "mine"),
        ({"X-Request-Id": "a" * 200}, "a" * 128),
        ({"X-Request-Id": b"a\xc3\xa4\tb"}, "a???b"),
        ({"X-Request-Id": ""}, None),
        ({}, None),
    ],
)
def test_the_id_of_the_client_is_logged(
    pico: Server, headers: dict[str, Any], client_id: str | None
) -> None:
    answer = httpx.get(f"{pico.url}/v1/models", headers=headers)
    identity = answer.headers["x-request-id"]
    assert identity.startswith("req-")
    assert pico.wait_for("request", id=identity).get("client_id") == client_id
