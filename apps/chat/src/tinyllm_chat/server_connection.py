"""The wire to a server that speaks OpenAI's protocol."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse

from tinyllm_chat.errors import ChatError

Json = dict[str, object]
SILENCE = 120.0
"""Seconds after which a server that says nothing counts as gone."""


class ServerConnection:
    """Asks one server.

    Attributes:
        url: its address, without /v1.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Remember an address, and the key that it wants."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def models(self) -> list[Json]:
        """The models that the server has.

        Raises:
            ChatError: if it cannot be reached, or refuses.
        """
        with self._ask("/v1/models") as answer:
            listed = _object(answer.read()).get("data")
        return [model for model in listed if "id" in model] if isinstance(listed, list) else []

    @contextmanager
    def stream(self, body: Json) -> Iterator[Iterator[Json | None]]:
        """Ask for an answer; its chunks as they come, None for a sign of life in between.

        Leaving the context hangs up, which ends the answer.

        Raises:
            ChatError: if the server cannot be reached, refuses, or breaks off.
        """
        with self._ask("/v1/chat/completions", json.dumps(body).encode()) as answer:
            yield self._chunks(answer)

    def _chunks(self, answer: HTTPResponse) -> Iterator[Json | None]:
        try:
            for line in answer:
                if line.startswith(b"data: [DONE]"):
                    return
                if not line.startswith(b"data: "):
                    yield None
                    continue
                chunk = _object(line.removeprefix(b"data: "))
                if "error" in chunk:
                    raise ChatError(_told(chunk))
                yield chunk
        except (OSError, HTTPException) as error:
            raise ChatError(f"{self.url}: the server broke off ({error})") from error
        raise ChatError(f"{self.url}: the server broke off in the middle of the answer")

    @contextmanager
    def _ask(self, path: str, body: bytes | None = None) -> Iterator[HTTPResponse]:
        request = urllib.request.Request(self.url + path, body, self._headers)
        try:
            answer: HTTPResponse = urllib.request.urlopen(request, timeout=SILENCE)
        except urllib.error.HTTPError as error:
            with error:
                told = _told(_object(error.read()))
            raise ChatError(f"{self.url}: {told or f'HTTP status {error.code}'}") from error
        except (OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise ChatError(
                f"--server: cannot reach {self.url} ({reason}): is it running? `serve` starts one"
            ) from error
        with answer:
            yield answer


def _object(text: bytes) -> Json:
    """A JSON object; anything else is an empty one."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _told(body: Json) -> str:
    """What an error says, in OpenAI's shape."""
    error = body.get("error")
    return str(error.get("message", "")) if isinstance(error, dict) else ""
