"""Keys, their names and limits, the salt of the prefix cache, priorities, and CORS."""

import json
import logging
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tinyllm_cli.messages import UsageError
from tinyllm_serve.clients import Client, read_keys
from tinyllm_serve.json_log import JsonFormatter
from tinyllm_serve.settings import Settings
from tinyllm_serve.testing import Server

Start = Callable[..., Server]
LONG = [{"role": "user", "content": "what does rmsnorm do, and why? " * 8}]
KEYS = """
[[keys]]
name = "first"
key = "secret-one"
max_priority = 5

[[keys]]
name = "second"
key = "secret-two"
limit = 1
weight = 0.5
"""


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a key file, and a queue for few answers."""
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(KEYS)
    file.chmod(0o600)
    options = ("--max-num-seqs", "4", "--max-waiting", "4", "--page-size", "8")
    with Server("--api-key-file", str(file), *options) as server:
        yield server


def ask(server: Server, key: str | None = None, **fields: Any) -> httpx.Response:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    body = {"messages": LONG, "max_tokens": 2, **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def cached(answer: httpx.Response) -> int:
    tokens: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def test_a_key_does_not_learn_what_another_key_asked(keyed: Server) -> None:
    assert cached(ask(keyed, "secret-one")) == 0
    assert cached(ask(keyed, "secret-one")) > 0
    assert cached(ask(keyed, "secret-two")) == 0
    assert cached(ask(keyed, "secret-one", cache_salt="other")) == 0
    assert cached(ask(keyed, "secret-one", cache_salt="other")) > 0


def test_keys_share_the_cache_if_the_operator_says_so() -> None:
    shared = Settings(api_key=["a", "b"], share_prefix_cache=True).clients()
    apart = Settings(api_key=["a", "b"]).clients()
    assert shared["a"].cache_salt == shared["b"].cache_salt == ""
    assert apart["a"].cache_salt != apart["b"].cache_salt
    assert apart["a"] == Settings(api_key=["a"]).clients()["a"]  # the same after a restart


def test_requests_without_keys_share_the_cache(pico: Server) -> None:
    messages = [{"role": "user", "content": "one question of two connections, asked twice " * 8}]
    ask(pico, messages=messages)
    assert cached(ask(pico, messages=messages)) > 0
    assert cached(ask(pico, messages=messages, cache_salt="a")) == 0


def test_the_log_has_the_name_of_the_key_and_the_priority(keyed: Server) -> None:
    identity = ask(keyed, "secret-one", priority=-5).headers["x-request-id"]
    entry = keyed.wait_for("request", id=identity)
    assert (entry["key"], entry["priority"]) == ("first", -5)
    assert "secret" not in json.dumps(keyed.log())


def test_the_operator_bounds_the_priority(keyed: Server, pico: Server) -> None:
    assert ask(keyed, "secret-one", priority=-6).json()["error"]["param"] == "priority"
    assert ask(keyed, "secret-two", priority=-1).status_code == 400
    assert ask(keyed, "secret-two", priority=1000).status_code == 200
    answer = ask(pico, priority=-1)
    assert answer.json()["error"]["message"] == "priority: expected at least 0, got -1"


def test_a_key_has_a_limit_of_requests_in_progress(keyed: Server) -> None:
    address = urlsplit(keyed.url)
    unfinished = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
        b"Content-Type: application/json\r\nAuthorization: Bearer secret-two\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(unfinished)
        time.sleep(0.5)  # until the server has read the headers
        answer = ask(keyed, "secret-two")
        assert answer.status_code == 429
        assert answer.headers["Retry-After"] == "1"
        assert answer.json()["error"]["code"] == "key_limit_exceeded"
        entry = keyed.wait_for("request", id=answer.headers["x-request-id"])
        route = "/v1/chat/completions"
        assert (entry["path"], entry.get("code")) == (route, "key_limit_exceeded")
        assert ask(keyed, "secret-one").status_code == 200
    time.sleep(0.5)
    assert ask(keyed, "secret-two").status_code == 200


def test_a_request_that_can_never_be_admitted_is_an_error(keyed: Server) -> None:
    answer = ask(keyed, "secret-one", n=9)
    assert answer.status_code == 400
    assert "expected at most 8 answers" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected tables"),
        ("a = 1", "expected tables"),
        ("keys = []", "expected tables"),
        ('[[keys]]\nname = "a"', "a: key: expected printable"),
        ('[[keys]]\nkey = "a"', "key 1: name: expected"),
        ('[[keys]]\nname = "a"\nkey = "a b"', "a: key: expected"),
        ('[[keys]]\nname = "a"\nkey = "b"\nwait = 1', "expected name, key, .* got 'wait'"),
        ('[[keys]]\nname = "a"\nkey = "b"\nweight = 0', "a: weight: expected a number"),
        ('[[keys]]\nname = "a"\nkey = "b"\nlimit = 1.5', "a: limit: expected a whole number"),
        ('[[keys]]\nname = "a"\nkey = "b"\nlimit = true', "a: limit: expected a number"),
        ('[[keys]]\nname = "a"\nkey = "b"\n' * 2, "one key with the name 'a'"),
        ('[[keys]]\nname="a"\nkey="b"\n[[keys]]\nname="c"\nkey="b"', "a and c: expected different"),
        ('[[keys]]\nname = "a"\nkey = "b', "not TOML"),
    ],
)
def test_a_wrong_key_file_is_a_usage_error(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=expected):
        Settings(api_key_file=file).clients()


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("a", "secret-one", "key-1 and a: expected different keys"),
        ("key-1", "secret-two", "expected one key with the name 'key-1', got two"),
    ],
)
def test_a_key_of_the_command_line_differs_from_those_of_the_file(
    tmp_path: Path, name: str, key: str, expected: str
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f'[[keys]]\nname = "{name}"\nkey = "{key}"')
    with pytest.raises(UsageError, match=f"^--api-key-file: {expected}$"):
        Settings(api_key=["secret-one"], api_key_file=file).clients()


def test_a_missing_key_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--api-key-file: cannot read"):
        Settings(api_key_file=tmp_path / "none").clients()


def test_a_key_file_without_end_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="expected at most 1,000,000 characters"):
        Settings(api_key_file=Path("/dev/zero")).clients()


def test_a_readable_key_file_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(KEYS)
    file.chmod(0o644)
    names = [entry.name for entry in read_keys(file)]
    assert names == ["first", "second"]
    assert "other users of this machine can read the API keys" in caplog.text
    assert "secret" not in caplog.text


def test_the_salt_of_a_request_extends_the_salt_of_its_client() -> None:
    client = Client(name="a", cache_salt="salt")
    assert (client.salt(None), client.salt("b")) == ("salt", "salt/b")


def test_an_address_for_other_machines_needs_a_key() -> None:
    with pytest.raises(UsageError, match="--host: expected a key for"):
        Settings(host="0.0.0.0")
    assert Settings(host="0.0.0.0", api_key=["a"]).has_keys
    assert not Settings(host="0.0.0.0", allow_anonymous=True).has_keys
    assert not Settings(host="localhost").has_keys


def test_the_headers_of_openais_javascript_sdk_pass_the_preflight(guarded: Server) -> None:
    names = "authorization,content-type,x-stainless-arch,x-stainless-os,x-stainless-retry-count"
    headers = {
        "Origin": "https://a.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": names,
    }
    answer = httpx.options(f"{guarded.url}/v1/chat/completions", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-headers"] == names
    other = {**headers, "Origin": "https://b.example"}
    assert httpx.options(f"{guarded.url}/v1/chat/completions", headers=other).status_code == 400
    answer = httpx.get(f"{guarded.url}/health", headers={"Origin": "https://a.example"})
    assert answer.headers["access-control-expose-headers"] == "x-request-id, Retry-After"


def deep(levels: int) -> None:
    if levels:
        deep(levels - 1)
    raise RecursionError


def test_lines_of_the_log_are_bounded() -> None:
    try:
        deep(500)
    except RecursionError as error:
        fault = (type(error), error, error.__traceback__)
    record = logging.LogRecord("a", logging.ERROR, "", 1, "failed", None, fault)
    vars(record)["fields"] = {"reasons": ["stop"] * 2048, "user": "a" * 9000}
    line = JsonFormatter().format(record)
    assert len(line) < 8000
    assert json.loads(line)["error"] == "RecursionError"
