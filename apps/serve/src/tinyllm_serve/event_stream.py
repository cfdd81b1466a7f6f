"""Server-sent events: a response that comes as it is made."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tinyllm_serve.api_error import ApiError, as_api_error
from tinyllm_serve.disconnect import disconnected

Event = dict[str, object]

OR_EVENTS: dict[int | str, dict[str, object]] = {200: {"content": {"text/event-stream": {}}}}
"""For the documentation: what an endpoint gives instead of JSON when it streams."""

_KEEP_ALIVE = b": keep-alive\n\n"
_log = logging.getLogger(__name__)


class EventStream(Response):
    """Sends events as they come, and closes their source as soon as nobody reads.

    The status is sent with the first event, so that what goes wrong before it has a status of its
    own; or after a first silence of `keep_alive` seconds, if that comes sooner. In a silence a
    comment says that the server is alive. An error in the middle is an event like OpenAI's.

    Attributes:
        events: the source; closed in any case.
        keep_alive: seconds.
        named: whether each event's "type" is also its name, as /v1/responses has it.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[Event, None], keep_alive: float, *, named: bool = False
    ) -> None:
        """Prepare to send."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events = events
        self.keep_alive = keep_alive
        self.named = named
        self._started = False
        self._latest = 0.0
        self._turn = asyncio.Lock()

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send it all, or as much as the client waits for."""
        # Who waits for what is settled once a stream: a token wakes the task that sends it, alone.
        sending = asyncio.create_task(self._send_all(send))
        others = (
            asyncio.create_task(disconnected(receive)),
            asyncio.create_task(self._stay_alive(send)),
        )
        try:
            await asyncio.wait({sending, *others}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, *others):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
            await self.events.aclose()

    async def _send_all(self, send: Send) -> None:
        """Send every event as it comes, and the end."""
        try:
            async for event in self.events:
                await self._send(send, _bytes(event, named=self.named))
        except Exception as error:
            if not self._started:
                raise
            told = as_api_error(error)
            if told.status == 500:
                _log.error("a stream has failed", exc_info=error)
            await self._send(send, error_chunk(told, named=self.named), last=True)
        else:
            await self._send(send, _end(named=self.named), last=True)

    async def _stay_alive(self, send: Send) -> None:
        """Send a comment in each silence, as long as there is anybody."""
        self._latest = time.monotonic()
        while True:
            silence = time.monotonic() - self._latest
            if silence >= self.keep_alive:
                await self._send(send, _KEEP_ALIVE)
            else:
                await asyncio.sleep(self.keep_alive - silence)

    async def _send(self, send: Send, chunk: bytes, *, last: bool = False) -> None:
        """Send bytes, after the status; one caller at a time."""
        async with self._turn:
            if not self._started:
                self._started = True
                start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                await send(start)
            await send({"type": "http.response.body", "body": chunk, "more_body": not last})
            self._latest = time.monotonic()


def error_chunk(error: ApiError, *, named: bool) -> bytes:
    """The last bytes of a stream that has failed in the middle."""
    return _bytes(error.body, named=named) + _end(named=named)


def _end(*, named: bool) -> bytes:
    return b"" if named else b"data: [DONE]\n\n"


def _bytes(event: Event, *, named: bool) -> bytes:
    name = f"event: {event['type']}\n" if named and "type" in event else ""
    return f"{name}data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
