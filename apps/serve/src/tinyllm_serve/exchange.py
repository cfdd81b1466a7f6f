"""One request to an ASGI application that is elsewhere, and what comes back."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Scope

from tinyllm_serve.request_note import Note


@dataclass(frozen=True)
class Asked:
    """A request, whole.

    Attributes:
        method: of HTTP.
        path: decoded.
        query: as it was sent.
        headers: names and values.
        body: as it was sent.
        beginnings: names of what it begins with: see `request_beginnings`.
    """

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    beginnings: tuple[bytes, ...] = ()

    def scope(self, note: Note) -> Scope:
        """The request as ASGI has it; endpoints leave their notes in `note`."""
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": self.query,
            "headers": list(self.headers),
            "state": {"note": note},
        }


@dataclass(frozen=True)
class Answered:
    """What is known of a request when all but the last of its answer is there.

    Attributes:
        route: the path of its endpoint; None if it has none.
        note: for the log.
    """

    route: str | None
    note: Note


async def exchange(app: ASGIApp, scope: Scope, body: bytes) -> AsyncGenerator[Message, None]:
    """Ask an application, and give its messages as they come.

    Closing the generator is to the application what a client is that goes away.
    """
    sent: asyncio.Queue[Message | None] = asyncio.Queue()
    given = False

    async def receive() -> Message:
        nonlocal given
        if given:
            await asyncio.Event().wait()  # until it is cancelled, with all that waits for it
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.put_nowait(message)

    task = asyncio.ensure_future(app(scope, receive, send))
    task.add_done_callback(lambda _: sent.put_nowait(None))
    try:
        while (message := await sent.get()) is not None:
            yield message
        await task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task
