"""HTTP requests to a server that implements OpenAI's API."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse

from tinyllm_chat.errors import ChatError

Json = dict[str, object]
TIMEOUT = 120.0
"""Seconds without data after which the connection counts as lost."""


class ServerConnection:
    """A client of one server.

    Attributes:
        url: the base URL, without /v1.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Store the URL and the API key; no request is sent yet."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def models(self) -> list[Json]:
        """Return the model objects of `/v1/models`.

        Raises:
            ChatError: if the server cannot be reached, refuses the request, or closes the
                connection early.
        """
        with self._request("/v1/models") as response, self._reading():
            listed = _parse_object(response.read()).get("data")
        models = listed if isinstance(listed, list) else []
        return [model for model in models if isinstance(model, dict) and "id" in model]

    @contextmanager
    def stream(self, body: Json) -> Iterator[Iterator[Json | None]]:
        """Request a chat completion, and yield an iterator over the lines of the response.

        The iterator yields each chunk as a JSON object, and None for each line without a chunk.

        Leaving the context closes the connection, which cancels the request.

        Raises:
            ChatError: if the server cannot be reached, refuses the request, or closes the
                connection early.
        """
        with self._request("/v1/chat/completions", json.dumps(body).encode()) as response:
            yield self._chunks(response)

    def _chunks(self, response: HTTPResponse) -> Iterator[Json | None]:
        with self._reading():
            for line in response:
                field, _, value = line.partition(b":")
                if field != b"data":
                    yield None  # an empty line, a keep-alive comment or another field
                    continue
                if value.strip() == b"[DONE]":
                    return
                chunk = _parse_object(value)
                if message := _error_message(chunk):
                    raise ChatError(message)
                yield chunk
        raise ChatError(f"{self.url}: the server closed the connection before the answer's end")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn errors of a response's body into `ChatError`."""
        try:
            yield
        except (OSError, HTTPException) as error:
            raise ChatError(f"{self.url}: the connection was lost ({error})") from error

    @contextmanager
    def _request(self, path: str, body: bytes | None = None) -> Iterator[HTTPResponse]:
        request = urllib.request.Request(self.url + path, body, self._headers)
        try:
            response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            with error, self._reading():
                message = _error_message(_parse_object(error.read()))
            raise ChatError(f"{self.url}: {message or f'HTTP status {error.code}'}") from error
        except (OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise ChatError(
                f"--server: cannot reach {self.url} ({reason}): is it running? `serve` starts one"
            ) from error
        with response:
            yield response


def _parse_object(text: bytes) -> Json:
    """Parse a JSON object. Return an empty object if the text is not a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _error_message(body: Json) -> str:
    """Return the message of an OpenAI error body; empty if there is no error."""
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error or "")
