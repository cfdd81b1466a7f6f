"""A connection with a request in progress holds few bytes, and notices its end."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from tinyllm_serve.http.connections import (
    RECEIVED_BYTES,
    ConnectionLimits,
    Connections,
    LimitedProtocol,
)
from tinyllm_serve.http.disconnect import disconnected
from tinyllm_serve.metrics import Metrics
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import RequestResponseCycle
from uvicorn.server import ServerState

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
LIMITS = ConnectionLimits(connections=10, headers=60.0, keep_alive=60, write=60.0)

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter, LimitedProtocol]


@asynccontextmanager
async def connected(application: ASGIApp) -> AsyncGenerator[Client, None]:
    """Connect a client to an application; yield its ends, and the server's connection."""
    kind = Connections(LIMITS, Metrics(lambda: None)).protocol()
    config = uvicorn.Config(application, http=kind, lifespan="off", log_config=None)
    made: list[LimitedProtocol] = []

    def protocol() -> LimitedProtocol:
        made.append(kind(config, ServerState(), {}))
        return made[0]

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        while not made:
            await asyncio.sleep(0.01)
        yield reader, writer, made[0]
        writer.transport.abort()


async def most_held(connection: LimitedProtocol, turns: int) -> int:
    """Return the most bytes that a connection holds in some turns of the event loop."""
    held = 0
    for _ in range(turns):
        await asyncio.sleep(0.01)
        following, _ = connection.conn.trailing_data
        cycle: RequestResponseCycle | None = connection.cycle
        held = max(held, len(following) + len(b"" if cycle is None else cycle.body))
    return held


async def repeats_receive(_scope: Scope, receive: Receive, _send: Send) -> None:
    """Wait for the end of the connection again and again, as nested endpoints and streams do."""
    for _ in range(100):
        with suppress(TimeoutError):
            await asyncio.wait_for(receive(), 0.05)


async def reads_nothing(_scope: Scope, _receive: Receive, _send: Send) -> None:
    await asyncio.Event().wait()


def within(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(seconds):
            await work()

    asyncio.run(limited())


def test_few_bytes_after_a_request_in_progress_are_held() -> None:
    async def send_much() -> None:
        async with connected(repeats_receive) as (_, writer, connection):
            writer.write(HEAD % 2 + b"{}" + b"x" * 4_000_000)
            # All of them if each call of `receive` reads 256 KiB more.
            assert 0 < await most_held(connection, 100) <= 2 * RECEIVED_BYTES

    within(30, send_much)


def test_few_bytes_of_a_body_that_is_not_read_are_held() -> None:
    async def send_much() -> None:
        async with connected(reads_nothing) as (_, writer, connection):
            writer.write(HEAD % 4_000_000 + b"x" * 4_000_000)
            held = await most_held(connection, 50)
            assert HIGH_WATER_LIMIT < held <= HIGH_WATER_LIMIT + RECEIVED_BYTES

    within(30, send_much)


@pytest.mark.parametrize("sent", [b"", b"\r\n", HEAD % 0])
def test_the_end_of_a_connection_is_noticed_whatever_follows_the_request(sent: bytes) -> None:
    noticed = asyncio.Event()

    async def waits_for_the_end(_scope: Scope, receive: Receive, _send: Send) -> None:
        await disconnected(receive)
        noticed.set()

    async def leave() -> None:
        async with connected(waits_for_the_end) as (_, writer, _connection):
            writer.write(HEAD % 0)
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.write(sent)
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.close()
            await noticed.wait()

    within(10, leave)


def test_requests_that_follow_at_once_are_answered_in_their_order() -> None:
    body = b"x" * 7_000
    count = 40

    async def answers(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        gone = asyncio.create_task(disconnected(receive))
        await asyncio.sleep(0.005)
        gone.cancel()
        await Response(scope["query_string"])(scope, receive, send)

    async def pipeline() -> None:
        async with connected(answers) as (reader, writer, _):
            for number in range(count):
                head = b"POST /?%03d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7000\r\n\r\n"
                writer.write(head % number + body)
            for number in range(count):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                assert await reader.readexactly(3) == b"%03d" % number

    within(60, pipeline)
