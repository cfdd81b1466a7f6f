"""HTTP requests to a server that implements OpenAI's API."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ipaddress import ip_address
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from tinyllm_cli.api_key import is_valid_key

from tinyllm_chat.errors import ChatError

Json = dict[str, object]
TIMEOUT = 120.0
"""Seconds without data after which the connection counts as lost."""

CONNECT_TIMEOUT = 10.0
"""Seconds to connect. An address that drops packets would be silent for `TIMEOUT`."""

MAX_BYTES = 1 << 24
"""The most bytes of a line or a whole body of a response."""


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects: urllib would send the API key to any host, and no body."""

    def redirect_request(self, *_arguments: object) -> None:
        """Return no request, so that the status becomes an error."""


class _Connection(HTTPConnection):
    """A connection that has `CONNECT_TIMEOUT` to connect, and the timeout of its request after."""

    def connect(self) -> None:
        """Connect to the server, or to the proxy."""
        timeout, self.timeout = self.timeout, CONNECT_TIMEOUT
        super().connect()
        self.sock.settimeout(timeout)


class _SecureConnection(_Connection, HTTPSConnection):
    """The same with TLS."""


class _Handler(HTTPHandler):
    def http_open(self, request: Request) -> HTTPResponse:
        return self.do_open(_Connection, request)


class _SecureHandler(HTTPSHandler):
    def https_open(self, request: Request) -> HTTPResponse:
        return self.do_open(_SecureConnection, request)


def _is_loopback(host: str) -> bool:
    """Return True for an address of this machine, which no proxy can reach."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


class ServerConnection:
    """A client of one server.

    Attributes:
        url: the base URL, without /v1.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Store the URL and the API key; no request is sent yet.

        Raises:
            ChatError: if the key cannot be sent in a header.
        """
        if api_key and not is_valid_key(api_key):
            raise ChatError("--api-key: expected printable characters of ASCII without spaces")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def models(self) -> list[Json]:
        """Return the model objects of `/v1/models`.

        Raises:
            ChatError: if the server cannot be reached, refuses the request, sends anything else
                than a list, or closes the connection early.
        """
        with self._request("/v1/models") as response, self._reading():
            body = _parse_object(_body(response)) or {}
        models = body.get("data", "missing")
        if models is None:  # Ollama's list without models
            return []
        if not isinstance(models, list):
            raise ChatError(
                f"--server: {self.url}/v1/models is not a list of models: is this a server with "
                "OpenAI's API?"
            )
        return [model for model in models if isinstance(model, dict) and "id" in model]

    @contextmanager
    def stream(self, body: Json) -> Iterator[Iterator[Json | None]]:
        """Request a chat completion, and yield an iterator over the lines of the response.

        The iterator yields each chunk as a JSON object, and None for each line without a chunk.

        Leaving the context closes the connection, which cancels the request.

        Raises:
            ChatError: if the server cannot be reached, refuses the request, sends data that is not
                JSON, or closes the connection early.
        """
        with self._request("/v1/chat/completions", json.dumps(body).encode()) as response:
            yield self._chunks(response)

    def _chunks(self, response: HTTPResponse) -> Iterator[Json | None]:
        with self._reading():
            for line in iter(partial(response.readline, MAX_BYTES), b""):
                field, _, value = line.partition(b":")
                if field != b"data" or not value.strip():
                    yield None  # an empty line, a keep-alive comment or another field
                    continue
                if value.strip() == b"[DONE]":
                    return
                chunk = _parse_object(value)
                if chunk is None:
                    if len(line) < MAX_BYTES and not line.endswith(b"\n"):
                        break  # the last line is incomplete
                    got = ascii(value.strip()[:60].decode(errors="replace"))
                    raise ChatError(f"{self.url}: expected JSON from the server, got {got}")
                if message := _error_message(chunk):
                    raise ChatError(message)
                yield chunk
        raise ChatError(f"{self.url}: the server closed the connection before the answer's end")

    @cached_property
    def _opener(self) -> OpenerDirector:
        """The sender of requests. It uses the proxy of the environment for other machines only."""
        handlers = [_NoRedirects(), _Handler(), _SecureHandler()]
        if _is_loopback(urlsplit(self.url).hostname or ""):
            handlers.append(ProxyHandler({}))
        return build_opener(*handlers)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn errors of a response's body into `ChatError`."""
        try:
            yield
        except (OSError, HTTPException) as error:
            raise ChatError(f"{self.url}: the connection was lost ({error})") from error

    @contextmanager
    def _request(self, path: str, body: bytes | None = None) -> Iterator[HTTPResponse]:
        try:
            request = Request(self.url + path, body, self._headers)
            response: HTTPResponse = self._opener.open(request, timeout=TIMEOUT)
        except HTTPError as error:
            with error, self._reading():
                refusal = _parse_object(error.read(MAX_BYTES)) or {}
            message = _error_message(refusal) or _plain_message(refusal)
            if error.code in range(300, 400):
                message = f"HTTP status {error.code}, a redirect: give --server the new address"
            raise ChatError(f"{self.url}: {message or f'HTTP status {error.code}'}") from error
        except (OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise ChatError(
                f"--server: cannot reach {self.url} ({reason}): is it running? `serve` starts one"
            ) from error
        with response:
            yield response


def _body(response: HTTPResponse) -> bytes:
    """Read a whole body; raises HTTPException if it is incomplete or too long."""
    body = response.read(MAX_BYTES)
    if response.length:
        raise HTTPException(f"the body is incomplete, or longer than {MAX_BYTES:,} bytes")
    return body


def _parse_object(text: bytes) -> Json | None:
    """Parse a JSON object: None if the text is not JSON, an empty object for any other value."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else {}


def _error_message(body: Json) -> str:
    """Return the message of an OpenAI error body; empty if there is no error."""
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error or "")


def _plain_message(body: Json) -> str:
    """Return the message of an error body of other servers, such as FastAPI's; empty without it."""
    texts = (body.get("detail"), body.get("message"))
    return next((text for text in texts if isinstance(text, str)), "")
