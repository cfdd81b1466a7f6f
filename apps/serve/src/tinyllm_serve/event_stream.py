"""Server-sent events: a response that comes as it is made."""

import asyncio
import json
import logging
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

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send it all, or as much as the client waits for."""
        gone = asyncio.create_task(disconnected(receive))
        next_event = asyncio.ensure_future(anext(self.events, None))
        started = False
        try:
            while True:
                done, _ = await asyncio.wait(
                    {gone, next_event},
                    timeout=self.keep_alive,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if gone in done:
                    return
                chunk, last = _KEEP_ALIVE, False
                if next_event in done:
                    chunk, last = self._chunk(next_event, started=started)
                    next_event = asyncio.ensure_future(anext(self.events, None))
                if not started:
                    await self._begin(send)
                    started = True
                await send({"type": "http.response.body", "body": chunk, "more_body": not last})
                if last:
                    return
        finally:
            for task in (gone, next_event):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
            await self.events.aclose()

    async def _begin(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)

    def _chunk(self, task: asyncio.Future[Event | None], *, started: bool) -> tuple[bytes, bool]:
        """The bytes of what has come, and whether they are the last."""
        try:
            event = task.result()
        except Exception as error:
            if not started:
                raise
            told = as_api_error(error)
            if told.status == 500:
                _log.error("a stream has failed", exc_info=error)
            return error_chunk(told, named=self.named), True
        if event is None:
            return _end(named=self.named), True
        return _bytes(event, named=self.named), False


def error_chunk(error: ApiError, *, named: bool) -> bytes:
    """The last bytes of a stream that has failed in the middle."""
    return _bytes(error.body, named=named) + _end(named=named)


def _end(*, named: bool) -> bytes:
    return b"" if named else b"data: [DONE]\n\n"


def _bytes(event: Event, *, named: bool) -> bytes:
    name = f"event: {event['type']}\n" if named and "type" in event else ""
    return f"{name}data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
