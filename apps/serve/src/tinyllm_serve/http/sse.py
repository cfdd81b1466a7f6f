"""Server-sent events: a response that is sent while it is generated."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tinyllm_serve.http.disconnect import cancel, disconnected
from tinyllm_serve.http.errors import (
    RESPONSES,
    Api,
    ApiError,
    api_of,
    as_api_error,
    failed_response,
)
from tinyllm_serve.http.json_text import JsonObject, json_bytes

STREAM_RESPONSE: dict[int | str, JsonObject] = {200: {"content": {"text/event-stream": {}}}}
"""The OpenAPI description of a response with `stream`, in addition to the JSON response."""

_KEEP_ALIVE = b": keep-alive\n\n"
_log = logging.getLogger(__name__)


class EventStream(Response):
    """Send events as they come, and close their source as soon as the client disconnects.

    The status is sent with the first event, or after a silence of `keep_alive` seconds, whichever
    comes first. An error before the status is sent becomes a response with its own status. A later
    error becomes the last events. After each `keep_alive` seconds of silence, a comment is sent. A
    library's response would send the status at once, and comments also beside events.

    Attributes:
        events: the source of the events, which are objects, or long ones as JSON; always closed at
            the end.
        keep_alive: the seconds of silence before a comment.
        failure: returns the last events of a stream that has failed after its status was sent; None
            for the body of the error alone.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[JsonObject | bytes, None],
        keep_alive: float,
        *,
        failure: Callable[[ApiError], Iterable[JsonObject]] | None = None,
    ) -> None:
        """Prepare to send."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events = events
        self.keep_alive = keep_alive
        self.failure = failure
        self._started = False
        self._failed = False
        self._last_sent = 0.0
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events, unless the client disconnects."""
        # Three tasks for the whole stream, so that a token wakes only the task that sends it.
        sending = asyncio.create_task(self._send_all(scope, send))
        gone = asyncio.create_task(disconnected(receive))
        comments = asyncio.create_task(self._send_comments(send))
        async with aclosing(self.events):
            try:
                await asyncio.wait({sending, gone, comments}, return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    sending.result()
            finally:
                await cancel(sending, gone, comments)

    async def _send_all(self, scope: Scope, send: Send) -> None:
        """Send every event as it comes, and the end of the stream."""
        api = api_of(scope)
        try:
            async for event in self.events:
                await self._send(send, _encode(event, api))
        except Exception as error:
            if not self._started:
                self._failed = True  # the error has a status of its own: no comment may come first
                raise
            known = as_api_error(error)
            if known.code == "internal_error":
                _log.error("a stream has failed", exc_info=error)
            body = api.error_body(known, scope)
            events = [body] if self.failure is None else self.failure(known)
            await self._send(send, last_bytes(events, api), last=True)
        else:
            await self._send(send, last_bytes([], api), last=True)

    async def _send_comments(self, send: Send) -> None:
        """Send a comment in each silence."""
        self._last_sent = time.monotonic()
        while not self._failed:
            silence = time.monotonic() - self._last_sent
            if silence >= self.keep_alive:
                await self._send(send, _KEEP_ALIVE)
            else:
                await asyncio.sleep(self.keep_alive - silence)

    async def _send(self, send: Send, chunk: bytes, *, last: bool = False) -> None:
        """Send bytes, and before the first bytes the status. One task sends at a time."""
        async with self._lock:
            if not self._started:
                self._started = True
                start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                await send(start)
            await send({"type": "http.response.body", "body": chunk, "more_body": not last})
            self._last_sent = time.monotonic()


def lost_stream_end(error: ApiError, scope: Scope, first: bytes, latest: bytes) -> bytes:
    """Return the end of a stream whose source is lost, after its first and its latest event.

    Both are empty if no event was sent.
    """
    api = api_of(scope)
    events = [api.error_body(error, scope)]
    if api is RESPONSES:
        data = (sent.partition(b"data: ")[2] for sent in (first, latest))
        start, before = (json.loads(each or "{}") for each in data)
        number = before.get("sequence_number", -1) + 1
        events = failed_response(error, start.get("response", {}), number)
    return last_bytes(events, api)


def last_bytes(events: Iterable[JsonObject], api: Api) -> bytes:
    """Return the bytes of the last events of a stream, and of its end."""
    end = b"" if api.has_event_names else b"data: [DONE]\n\n"
    return b"".join(_encode(event, api) for event in events) + end


def _encode(event: JsonObject | bytes, api: Api) -> bytes:
    """Return an event as the stream sends it. Events with names are objects."""
    if isinstance(event, bytes):
        return b"data: %s\n\n" % event
    name = f"event: {event['type']}\n" if api.has_event_names else ""
    return b"%sdata: %s\n\n" % (name.encode(), json_bytes(event))
