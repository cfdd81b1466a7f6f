"""Limits on connections: their number, and the time for headers and for reading a response."""

import asyncio
import re
import resource
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from tinyllm_serve.http.request_target import with_origin_form
from tinyllm_serve.json_log import log_event
from tinyllm_serve.metrics import Metrics

Reason = Literal["full", "evicted", "headers", "write", "draining"]

WATCH_SECONDS = 0.5
"""Seconds between two checks of all connections."""

DRAIN_BODY_SECONDS = 1.0
"""Seconds that unfinished bodies have after SIGTERM. Their requests would get a 503."""

DRAIN_WRITE_SECONDS = 5.0
"""Seconds after SIGTERM in which a client must read what waits for it."""

LAST_BYTES_SECONDS = 1.0
"""Seconds for sending the errors of requests that the end of the server cuts off."""

LAST_REQUESTS_SECONDS = 5.0
"""Seconds in which requests must end once their connections are closed."""

OTHER_FILES = 128
"""Files of the process that are not connections: checkpoints, pipes, libraries."""

MAX_HEAD = 16384
"""The most bytes of the request line and headers of a request, parsed in 5 ms at most."""

MAX_HEADERS = 128
"""The most headers of a request. SDKs and proxies send some 40."""

RECEIVED_BYTES = 16384
"""Bytes that are read and parsed at a time, and that may follow a request in progress. By default
asyncio reads 262,144 bytes. h11 limits only incomplete trailers, and would accept complete ones of
that length. uvicorn stops reading when more than 65,536 bytes of a body wait."""

FREE_CHUNKS = 512
"""Chunks of any length that a body may have. A chunk takes 5 microseconds of the event loop."""

CHUNK_BYTES = 256
"""The least mean length of the further chunks of a body."""

_HEAD_END = re.compile(rb"\n\r?\n")  # as h11 finds it

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: 132\r\n\r\n"
    b'{"error":{"message":"the server has too many connections: try again later",'
    b'"type":"server_error","param":null,"code":"unavailable"}}'
)


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits on connections; times in seconds.

    Attributes:
        connections: the most open connections.
        headers: the time for the headers of a request.
        keep_alive: the time that a connection may be idle between two requests.
        write: the time in which a client must make room for more of its response.
    """

    connections: int
    headers: float
    keep_alive: int
    write: float


class Connections:
    """All open connections of a server."""

    def __init__(self, limits: ConnectionLimits, metrics: Metrics) -> None:
        """Start without connections."""
        self.limits = limits
        self._metrics = metrics
        self._open: set[LimitedProtocol] = set()
        self._closed: Counter[Reason] = Counter()
        self._drained_at: float | None = None

    def protocol(self) -> type["LimitedProtocol"]:
        """Return the protocol class of these connections."""
        shared = self

        class Protocol(LimitedProtocol):
            connections_of_server = shared

        return Protocol

    def add(self, connection: "LimitedProtocol") -> None:
        """Add a connection. If there are too many, close the one that has waited longest.

        Connections without a request make room first, then those whose body has not come. Neither
        idle sockets nor unfinished bodies can lock out clients. If all others have a request in
        progress, the new one gets a 503.
        """
        self._open.add(connection)
        self._metrics.http_connections.set(len(self._open))
        if len(self._open) <= self.limits.connections:
            return
        others = self._open - {connection}
        idle = [other for other in others if other.waiting_since is not None]
        unfinished = [other for other in others if other.is_sending_body]
        if candidates := idle or unfinished:
            oldest = min(candidates, key=lambda other: other.quiet_since)
            oldest.transport.abort()
            self.remove(oldest)  # at once, because several connections can come in one turn
            self._count("evicted")
        else:
            connection.transport.write(_FULL)
            connection.transport.close()
            self._count("full")

    def remove(self, connection: "LimitedProtocol") -> None:
        """Forget a closed connection."""
        self._open.discard(connection)
        self._metrics.http_connections.set(len(self._open))

    def drain(self) -> None:
        """Shorten the times from now on, so that no client holds up the end of the server."""
        self._drained_at = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Close all connections, and wait until their requests have ended, for some seconds.

        uvicorn would log an exception for each request that runs when the event loop ends.
        """
        requests = {task for connection in self._open for task in connection.tasks}
        if requests:
            await asyncio.wait(requests, timeout=LAST_BYTES_SECONDS)
        for connection in list(self._open):
            connection.transport.abort()
        if requests:
            await asyncio.wait(requests, timeout=LAST_REQUESTS_SECONDS)

    async def watch(self) -> None:
        """Close connections that exceed a limit, forever; log their number."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = asyncio.get_running_loop().time()
            for connection in list(self._open):
                reason = self._exceeded(connection, now)
                if reason is not None:
                    connection.transport.abort()
                    self._count(reason)
            if self._closed:
                log_event("connections closed", **{str(why): n for why, n in self._closed.items()})
                self._closed.clear()

    def _exceeded(self, connection: "LimitedProtocol", now: float) -> Reason | None:
        """Return the limit that a connection exceeds."""
        limits, draining = self.limits, self._drained_at
        since = connection.waiting_since
        idle = limits.keep_alive if connection.has_served else 0
        if since is not None and now - since > limits.headers + idle:
            return "headers"
        write = limits.write if draining is None else min(limits.write, DRAIN_WRITE_SECONDS)
        blocked = connection.blocked_since
        if blocked is not None and now - max(blocked, draining or blocked) > write:
            return "write"
        if draining is None:
            return None
        seconds = now - draining
        late = connection.is_sending_body and seconds > DRAIN_BODY_SECONDS
        stuck = connection.transport.is_closing() and seconds > DRAIN_WRITE_SECONDS
        return "draining" if late or stuck else None

    def _count(self, reason: Reason) -> None:
        self._closed[reason] += 1
        self._metrics.http_connections_closed.labels(reason).inc()


if TYPE_CHECKING:
    ParserEvent = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]
else:  # the type checks of tests cannot read the names of h11's sentinels
    ParserEvent = object


class _LimitedParser(h11.Connection):
    """A parser that refuses long or many headers, two lengths of a body, and many small chunks.

    It closes the connection after a response to a client that still waits for `100 Continue`.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD)
        self._allowed = 0

    def next_event(self) -> ParserEvent:
        """Return the next event; raises RemoteProtocolError for what is refused."""
        if self.their_state is h11.IDLE:
            received, _ = self.trailing_data
            # h11 itself limits headers only while they are incomplete.
            if len(received) > MAX_HEAD and not _HEAD_END.search(received, 0, MAX_HEAD):
                raise h11.RemoteProtocolError("too long headers")
        event = super().next_event()
        if isinstance(event, h11.Request):
            if len(event.headers) > MAX_HEADERS:
                raise h11.RemoteProtocolError("too many headers")
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
                # A proxy may count the body by the other one (RFC 9112, section 6.1).
                raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")
            self._allowed = FREE_CHUNKS * CHUNK_BYTES
            event = with_origin_form(event)
        elif isinstance(event, h11.Data) and event.chunk_start:
            self._allowed -= CHUNK_BYTES
        if isinstance(event, h11.Data):
            self._allowed += len(event.data)
            if self._allowed < 0:
                raise h11.RemoteProtocolError("too many small chunks")
        return event

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        """Return the bytes of an event; `send` joins them."""
        if isinstance(event, h11.Response) and self.they_are_waiting_for_100_continue:
            # The client may send the body or leave it out (RFC 9110, section 10.1.1), so that the
            # next bytes can be a body or a request. A body that is being sent is skipped instead.
            headers = [*event.headers, (b"connection", b"close")]
            event = h11.Response(
                status_code=event.status_code, headers=headers, reason=event.reason
            )
        return super().send_with_data_passthrough(event)


class _LimitedReading(FlowControl):
    """Flow control that stops reading while `RECEIVED_BYTES` follow a request in progress.

    uvicorn stops reading at the first of these bytes, and reads again whenever the application
    waits for the end of the connection. Here reading goes on, so that this end is noticed.
    """

    def __init__(self, transport: asyncio.Transport, parser: h11.Connection) -> None:
        super().__init__(transport)
        self._parser = parser

    def pause_reading(self) -> None:
        """Stop reading, unless few bytes follow the request in progress."""
        if self._parser.their_state is not h11.DONE or self._is_full:
            super().pause_reading()

    def resume_reading(self) -> None:
        """Read again, unless many bytes follow the request in progress."""
        if not self._is_full:
            super().resume_reading()

    @property
    def _is_full(self) -> bool:
        """True if the bytes after the request in progress have reached their limit."""
        following, _ = self._parser.trailing_data
        return self._parser.their_state is h11.DONE and len(following) >= RECEIVED_BYTES


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 connection, with the times that `Connections` checks.

    Attributes:
        waiting_since: the time since which no request is in progress, or None.
        quiet_since: the time at which the latest request began, or before it the time since
            which the connection waits.
        blocked_since: the time since which the client has to read before more can be sent, or None.
        has_served: True after the first response.
    """

    connections_of_server: ClassVar[Connections]

    waiting_since: float | None = None
    quiet_since = 0.0
    blocked_since: float | None = None
    has_served = False

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Parse with limits."""
        super().__init__(config, server_state, app_state, _loop)
        self.conn = _LimitedParser()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and limit the bytes that one read returns."""
        if hasattr(transport, "max_size"):  # asyncio's transports have it, those of uvloop do not
            transport.max_size = RECEIVED_BYTES
        super().connection_made(cast(asyncio.Transport, transport))
        self.flow = _LimitedReading(self.transport, self.conn)
        self.waiting_since = self.quiet_since = self.loop.time()
        self.connections_of_server.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.connections_of_server.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle bytes, which may begin a request."""
        for start in range(0, len(data), RECEIVED_BYTES):
            super().data_received(data[start : start + RECEIVED_BYTES])
            if self.transport.is_closing():
                break
        cycle = self._cycle
        if cycle is not None and not cycle.response_complete and self.waiting_since is not None:
            self.waiting_since = None
            self.quiet_since = self.loop.time()

    def send_400_response(self, msg: str) -> None:
        """Refuse wrong HTTP. A response that has begun can only be cut off."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def on_response_complete(self) -> None:
        """Wait for the next request. It may have been received already."""
        self.has_served = True
        self.waiting_since = self.quiet_since = self.loop.time()
        if self.transport.is_closing():  # only the client can hold up the close
            self.blocked_since = self.loop.time()
        super().on_response_complete()
        self.flow.resume_reading()  # the parser has taken bytes since uvicorn has tried to
        if not self.cycle.response_complete:
            self.waiting_since = None

    def pause_writing(self) -> None:
        """Note that the client does not read."""
        self.blocked_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Note that the client has read."""
        self.blocked_since = None
        super().resume_writing()

    @property
    def is_sending_body(self) -> bool:
        """True while the server waits for the rest of a body, and has not answered."""
        cycle = self._cycle
        return cycle is not None and cycle.more_body and not cycle.response_started

    @property
    def _cycle(self) -> RequestResponseCycle | None:
        """The latest request and its response. uvicorn's type does not have its first value."""
        return self.cycle


def allow_files(connections: int) -> int:
    """Raise the limit of open files for a number of connections; return the number that fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(1, min(connections, soft - OTHER_FILES))
    return connections
