"""One request to an ASGI application in another process, and its response."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Scope

from tinyllm_serve.clients import Client
from tinyllm_serve.http.disconnect import cancel
from tinyllm_serve.http.request_log import LogFields

MAX_UNREAD = 4
"""The most messages of a response that wait for a slow client."""


@dataclass
class ReplicaRequest:
    """A complete HTTP request.

    Attributes:
        path: the decoded path.
        client: the client that sent the request.
        prefixes: the result of `prefix_hashes`.
        request_id: the id in the log of the front, which errors of /v1/messages repeat.
    """

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes | bytearray
    client: Client = field(default_factory=Client)
    prefixes: tuple[bytes, ...] = ()
    request_id: str | None = None

    def take_body(self) -> bytes | bytearray:
        """Return the body and forget it: Ray keeps the request until its answer has ended."""
        body, self.body = self.body, b""
        return body

    def scope(self, log_fields: LogFields) -> Scope:
        """Return the request's ASGI scope; endpoints write to `log_fields`."""
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
            "state": {
                "log_fields": log_fields,
                "client": self.client,
                "request_id": self.request_id,
            },
        }


@dataclass(frozen=True)
class RequestSummary:
    """The log fields of a request. A replica sends them before the last message of the response.

    Attributes:
        route: the path of the endpoint; None if no endpoint matches.
        log_fields: the fields of the log line.
    """

    route: str | None
    log_fields: LogFields


async def exchange(
    app: ASGIApp, scope: Scope, request: ReplicaRequest
) -> AsyncGenerator[Message, None]:
    """Send a request to an application, and yield its messages as they come.

    The application takes the request's body.

    Closing the generator cancels the request, as a client that disconnects does.
    """
    sent: asyncio.Queue[Message | None] = asyncio.Queue()
    room = asyncio.Semaphore(MAX_UNREAD)
    received = False

    async def receive() -> Message:
        nonlocal received
        if received:
            await asyncio.Event().wait()  # until the application's task is cancelled
        received = True
        return {"type": "http.request", "body": request.take_body(), "more_body": False}

    async def send(message: Message) -> None:
        await room.acquire()
        sent.put_nowait(message)

    task = asyncio.ensure_future(app(scope, receive, send))
    task.add_done_callback(lambda _: sent.put_nowait(None))
    try:
        while (message := await sent.get()) is not None:
            room.release()
            yield message
        await task
    finally:
        await cancel(task)
