"""Answers of a server: server-sent events of other servers, and errors in place of them."""

import io
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Thread, Timer
from typing import Any

import pytest
from tinyllm_chat.conversation import Conversation
from tinyllm_chat.errors import ChatError
from tinyllm_chat.remote.assistant import RemoteAssistant
from tinyllm_chat.remote.connection import ServerConnection
from tinyllm_chat.session import Session, interrupt_flag
from tinyllm_chat.settings import Settings
from tinyllm_chat.summary import summary
from tinyllm_chat.terminal.output import Terminal

MakeScreen = Callable[..., io.StringIO]
MODELS = b'{"data": [{"id": "m"}]}'
HI = {"choices": [{"delta": {"content": "Hi"}}]}
DONE = b"data: [DONE]\n\n"


class Handler(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""


@contextmanager
def serving(handler: type[Handler]) -> Iterator[str]:
    """Run a server, and yield its URL."""
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextmanager
def running_server(models: bytes, stream: bytes, missing: int = 0) -> Iterator[str]:
    """Run a server with these bodies, and yield its URL. It announces `missing` bytes more."""

    class Bodies(Handler):
        def do_GET(self) -> None:
            self._send(models)

        def do_POST(self) -> None:
            self._send(stream)

        def _send(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + missing))
            self.end_headers()
            self.wfile.write(body)

    with serving(Bodies) as url:
        yield url


def connect(url: str) -> RemoteAssistant:
    return RemoteAssistant(Settings(server=url), ServerConnection(url))


@pytest.fixture
def answer() -> Callable[[bytes], tuple[str, str]]:
    """Return the text and the finish reason of an answer that a server streams."""

    def reply(stream: bytes) -> tuple[str, str]:
        conversation = Conversation()
        conversation.add_question("hi")
        with running_server(MODELS, stream) as url:
            answer = connect(url).reply(conversation, lambda _segment: None)
        return answer.text, answer.finish_reason

    return reply


def event(chunk: object) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


@pytest.mark.parametrize(
    "stream",
    [
        event(HI) + DONE,
        (event(HI) + DONE).replace(b"data: ", b"data:"),
        (event(HI) + DONE).replace(b"\n", b"\r\n"),
        b": keep-alive\n\nevent: message\nid: 1\n" + event(HI) + DONE,
    ],
    ids=["plain", "no space", "carriage returns", "other fields"],
)
def test_every_form_of_an_event_is_read(
    answer: Callable[[bytes], tuple[str, str]], stream: bytes
) -> None:
    assert answer(stream) == ("Hi", "stop")


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": None},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        {"choices": [{"index": 0}]},
        {"choices": [{"delta": {"content": None, "reasoning_content": ""}}]},
        {"choices": [{"delta": {"content": [{"type": "text"}]}}]},
        {"error": None, "usage": None},
        [1],
        None,
    ],
    ids=json.dumps,
)
def test_a_chunk_without_text_is_skipped(
    answer: Callable[[bytes], tuple[str, str]], chunk: Any
) -> None:
    last = {"choices": [{"delta": None, "finish_reason": "length"}]}
    stream = event(chunk) + event(HI) + event(last) + event(chunk) + DONE
    assert answer(stream) == ("Hi", "length")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"message": "out of memory"}, "out of memory"),
        ("out of memory", "out of memory"),
        ({"code": 500}, r"\{'code': 500\}"),
    ],
)
def test_an_error_in_the_stream_is_raised(
    answer: Callable[[bytes], tuple[str, str]], error: object, message: str
) -> None:
    with pytest.raises(ChatError, match=message):
        answer(event(HI) + event({"error": error}))


@pytest.mark.parametrize("line", [b"nope", b"{", b"\xff"])
def test_data_that_is_not_json_is_an_error(
    answer: Callable[[bytes], tuple[str, str]], line: bytes
) -> None:
    with pytest.raises(ChatError, match="expected JSON from the server, got "):
        answer(event(HI) + b"data: " + line + b"\n\n" + DONE)


@pytest.mark.parametrize("stream", [DONE, event([1]) + DONE, event({"choices": []}) + DONE])
def test_a_stream_without_an_answer_is_an_error(
    answer: Callable[[bytes], tuple[str, str]], stream: bytes
) -> None:
    with pytest.raises(ChatError, match="the server sent no answer"):
        answer(stream)


@pytest.mark.parametrize("line", [b"", b"data:\n", b"data: {"])
def test_a_stream_that_ends_early_is_an_error(
    answer: Callable[[bytes], tuple[str, str]], line: bytes
) -> None:
    with pytest.raises(ChatError, match="closed the connection before the answer's end"):
        answer(event(HI) + line)


def test_an_empty_answer_with_a_finish_reason_is_an_answer(make_screen: MakeScreen) -> None:
    """The question stays, and a notice names a reason that `chat` does not know."""
    end = {"choices": [{"delta": {}, "finish_reason": "content_filter"}]}
    err = make_screen()
    with running_server(MODELS, event(end) + DONE) as url:
        session = Session(connect(url), Terminal(make_screen(), err, {}))
        answer = session.ask("hi", interruptible=False)
    assert (answer.text, answer.finish_reason) == ("", "content_filter")
    assert [turn.answer for turn in session.conversation.turns] == [""]
    assert "chat: the server ended the answer with 'content_filter'\n" in err.getvalue()


@pytest.mark.parametrize(
    "fields", ["reasoning_content", "reasoning", "reasoning_content reasoning"]
)
def test_reasoning_is_read_under_both_names(fields: str) -> None:
    conversation = Conversation()
    conversation.add_question("hi")
    thought = {"choices": [{"delta": dict.fromkeys(fields.split(), "Hm.")}]}
    with running_server(MODELS, event(thought) + event(HI) + DONE) as url:
        answer = connect(url).reply(conversation, lambda _segment: None)
    assert (answer.reasoning, answer.text) == ("Hm.", "Hi")


@pytest.mark.parametrize("body", [b"<html></html>", b"[]", b"{}", b'{"data": "m"}'])
def test_a_body_without_a_list_of_models_is_an_error(body: bytes) -> None:
    with (
        running_server(body, b"") as url,
        pytest.raises(ChatError, match=f"--server: {url}/v1/models is not a list of models"),
    ):
        connect(url)


@pytest.mark.parametrize("models", [b'{"data": []}', b'{"data": null}'])
def test_an_empty_list_of_models_is_a_list(models: bytes) -> None:
    with (
        running_server(models, b"") as url,
        pytest.raises(ChatError, match=r"expected a model of the server \(none\)"),
    ):
        connect(url)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"detail": "Model is loading, retry"}, "Model is loading, retry"),
        ({"message": "no such path"}, "no such path"),
        ({"detail": [{"loc": []}]}, "HTTP status 503"),
        ({"error": {"message": "busy"}, "message": "other"}, "busy"),
    ],
)
def test_the_message_of_an_error_status_is_shown(body: object, message: str) -> None:
    class Refusing(Handler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

    with serving(Refusing) as url, pytest.raises(ChatError, match=f"{url}: {message}$"):
        connect(url)


def test_this_machine_is_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with running_server(b'{"data": [{"id": "proxy"}]}', b"") as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        with running_server(MODELS, b"") as url:
            for address in (url, url.replace("127.0.0.1", "localhost")):
                assert connect(address).settings.model == "m"
        assert connect("http://example.invalid").settings.model == "proxy"


def test_connecting_has_a_timeout_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may answer later than that."""
    timeouts: list[object] = []
    create_connection = socket.create_connection

    def create(address: Any, timeout: Any, *others: Any) -> socket.socket:
        timeouts.append(timeout)
        return create_connection(address, timeout, *others)

    class Slow(Handler):
        def do_GET(self) -> None:
            time.sleep(0.6)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(MODELS)

    monkeypatch.setattr("tinyllm_chat.remote.connection.CONNECT_TIMEOUT", 0.3)
    monkeypatch.setattr(socket, "create_connection", create)
    with serving(Slow) as url:
        assert connect(url).settings.model == "m"
    assert timeouts == [0.3]


def test_only_objects_with_an_id_are_models() -> None:
    with running_server(b'{"data": [1, null, {"name": "a"}, {"id": "m"}]}', b"") as url:
        assert connect(url).settings.model == "m"


def test_an_incomplete_list_of_models_is_an_error() -> None:
    with (
        running_server(MODELS, b"", missing=9) as url,
        pytest.raises(ChatError, match="the connection was lost"),
    ):
        connect(url)


def test_counts_that_the_server_does_not_report_are_left_out() -> None:
    conversation = Conversation()
    conversation.add_question("hi")
    with running_server(MODELS, event(HI) + DONE) as url:
        assistant = connect(url)
        answer = assistant.reply(conversation, lambda _segment: None)
    assert summary(assistant, answer).startswith("answer 1 tokens | first token ")
    assert assistant.stats_lines() == [f"model    m on {url}"]


def test_an_effort_is_sent_as_a_variable_of_the_chat_template() -> None:
    with running_server(MODELS, b"") as url:
        assistant = connect(url)
        assert "chat_template_kwargs" not in assistant._body(Conversation(), 0)
        assistant.think("low")
        variables = assistant._body(Conversation(), 0)["chat_template_kwargs"]
    assert variables == {"enable_thinking": True, "reasoning_effort": "low"}


def test_a_redirect_is_refused_and_gets_no_key() -> None:
    received: list[str | None] = []

    class Redirecting(Handler):
        def do_GET(self) -> None:
            received.append(self.headers["Authorization"])
            self.send_response(302)
            self.send_header("Location", "/other")
            self.end_headers()

    with (
        serving(Redirecting) as url,
        pytest.raises(ChatError, match="HTTP status 302, a redirect: give --server the new"),
    ):
        ServerConnection(url, "secret").models()
    assert received == ["Bearer secret"]


@pytest.mark.parametrize("key", ["se\ncret", "sécret", "a b"])
def test_a_key_that_no_header_can_have_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ChatError, match="--api-key: expected printable") as refused:
        ServerConnection("http://127.0.0.1:1", key)
    assert key not in str(refused.value)


def test_ctrl_c_ends_the_wait_for_a_silent_server_and_keeps_the_text() -> None:
    ended = Event()

    class Silent(Handler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(MODELS)

        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(event(HI))
            ended.wait(30)

    conversation = Conversation()
    conversation.add_question("hi")
    interrupt = Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    with serving(Silent) as url:
        remote = connect(url)
        with interrupt_flag(at_once=True) as should_stop:
            interrupt.start()
            answer = remote.reply(conversation, lambda _segment: None, should_stop=should_stop)
        ended.set()
    interrupt.join()
    assert (answer.text, answer.finish_reason) == ("Hi", "interrupted")


@pytest.mark.parametrize("count", [-5, True, 10**400, "7"])
def test_a_count_that_is_no_number_of_tokens_is_left_out(count: object) -> None:
    conversation = Conversation()
    conversation.add_question("hi")
    usage = {"choices": [], "usage": {"prompt_tokens": count, "completion_tokens": count}}
    with running_server(MODELS, event(HI) + event(usage) + DONE) as url:
        answer = connect(url).reply(conversation, lambda _segment: None)
    assert answer.stats is not None
    assert (answer.stats.prompt_tokens, answer.stats.generated_tokens) == (0, 1)
