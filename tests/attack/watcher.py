"""A process that watches a server: memory, event loop, and a well-behaved stream.

It runs beside the tests, so that their work does not disturb its clock. Each line on stdin ends a
period. The readings of the period are then printed as one line of JSON.

    python watcher.py URL PID KEY
"""

import asyncio
import json
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from urllib.parse import urlsplit

import psutil

INTERVAL = 0.02
"""Seconds between two polls of /health, and between two readings of the memory."""

PROMPT = "what does rmsnorm do?"
ANSWER_TOKENS = 400
ERRORS = (OSError, EOFError, ValueError)


@dataclass
class Readings:
    """Readings of one period.

    Attributes:
        seconds: duration of the period.
        stall: longest wait for an answer of /health, in seconds.
        memory: resident bytes at the end.
        peak: most resident bytes.
        tokens: tokens of the stream.
        gap: longest time between two tokens of one answer, in seconds.
        first_token: longest time from a request to its first token, in seconds.
        refused: requests of the stream without an answer.
    """

    seconds: float = 0.0
    stall: float = 0.0
    memory: int = 0
    peak: int = 0
    tokens: int = 0
    gap: float = 0.0
    first_token: float = 0.0
    refused: int = 0


@dataclass
class Watcher:
    """Tasks that watch a server, and their readings."""

    url: str
    pid: int
    key: str
    readings: Readings = field(default_factory=Readings)
    start: float = field(default_factory=time.monotonic)
    waiting_since: dict[str, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Watch until stdin ends."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(task()) for task in (self.poll, self.weigh, self.stream)]
        while await loop.run_in_executor(None, sys.stdin.readline):
            sys.stdout.write(json.dumps(asdict(self.end_period())) + "\n")
            sys.stdout.flush()
        for task in tasks:
            task.cancel()

    def end_period(self) -> Readings:
        """Return the readings of the period, with the waits that have not ended."""
        now, ended = time.monotonic(), self.readings
        for kind, since in self.waiting_since.items():
            self.record(kind, now - since)
        ended.seconds, ended.memory = now - self.start, self.resident()
        ended.peak = max(ended.peak, ended.memory)
        self.readings, self.start = Readings(), now
        return ended

    def record(self, kind: str, seconds: float) -> None:
        """Record a wait if it is the longest of its kind."""
        setattr(self.readings, kind, max(getattr(self.readings, kind), seconds))

    def resident(self) -> int:
        """Return the resident bytes of the server, 0 after its end."""
        with suppress(psutil.Error):
            return int(psutil.Process(self.pid).memory_info().rss)
        return 0

    async def weigh(self) -> None:
        """Read the memory again and again."""
        while True:
            self.readings.peak = max(self.readings.peak, self.resident())
            await asyncio.sleep(INTERVAL)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to the server."""
        address = urlsplit(self.url)
        return await asyncio.open_connection(address.hostname, address.port, limit=1 << 20)

    async def poll(self) -> None:
        """Poll /health on one connection, and record the longest wait."""
        while True:
            with suppress(*ERRORS):
                reader, writer = await self.connect()
                while True:
                    self.waiting_since["stall"] = time.monotonic()
                    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    head = await reader.readuntil(b"\r\n\r\n")
                    await reader.readexactly(content_length(head))
                    self.record("stall", time.monotonic() - self.waiting_since.pop("stall"))
                    await asyncio.sleep(INTERVAL)
            self.waiting_since.pop("stall", None)
            await asyncio.sleep(INTERVAL)

    async def stream(self) -> None:
        """Request one answer after the other, and record the times of their tokens."""
        while True:
            try:
                await self.one_answer()
            except ERRORS:
                self.readings.refused += 1
                await asyncio.sleep(0.1)
            finally:
                self.waiting_since.pop("gap", None)
                self.waiting_since.pop("first_token", None)

    async def one_answer(self) -> None:
        """Stream one answer."""
        body = json.dumps(
            {
                "messages": [{"role": "user", "content": PROMPT}],
                "max_tokens": ANSWER_TOKENS,
                "ignore_eos": True,
                "stream": True,
            }
        ).encode()
        reader, writer = await self.connect()
        try:
            self.waiting_since["first_token"] = time.monotonic()
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Connection: close\r\nContent-Type: application/json\r\n"
                b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
                % (self.key.encode(), len(body), body)
            )
            if b" 200 " not in await reader.readline():
                raise EOFError
            last = 0.0
            while line := await reader.readline():
                if b'"content"' not in line or b'"role"' in line:
                    continue
                now = time.monotonic()
                kind = "gap" if last else "first_token"
                self.record(kind, now - (last or self.waiting_since.pop("first_token")))
                self.readings.tokens += 1
                last = self.waiting_since["gap"] = now
        finally:
            writer.close()


def content_length(head: bytes) -> int:
    """Return the number of bytes of the body after the head of a response."""
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    raise ValueError("Content-Length: expected one in the head")


if __name__ == "__main__":
    url, pid, key = sys.argv[1:]
    with suppress(KeyboardInterrupt):
        asyncio.run(Watcher(url, int(pid), key).run())
