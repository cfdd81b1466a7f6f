"""Measure requests while replicas start, crash, are replaced and stop.

    uv run --extra ray python tools/replica_faults.py

The server is `serve --ray --replicas 1-2` with pico. It gets more requests than half the capacity
of a replica until a second replica runs. Then one of the two is killed. Then both are replaced.
Then the server is idle until one replica stops. During all of this a client asks for short answers
without a pause. The tool needs `ps`, and no other Ray on this machine.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import httpx
from tinyllm_serve.testing import Server

CHAT = "/v1/chat/completions"
OPTIONS = ("--ray", "--replicas", "1-2", "--max-num-seqs", "4")
LONG_ANSWERS, PATIENCE = 3, 150.0  # clients with long answers; seconds of every time limit


def replica_processes() -> set[int]:
    """Return the process ids of all replicas on this machine, including replicas that load."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,stat=,args="], capture_output=True, text=True, check=True
    )
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    return {
        int(pid)
        for pid, state, *name in rows
        if not state.startswith("Z") and "ray::ServeReplica" in " ".join(name)
    }


class Load:
    """Clients that ask for long streams and for short answers, and counts of the outcomes."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        """Make a load that sends its requests with an HTTP client."""
        self._client = client
        self.ends: Counter[str] = Counter()

    async def long(self, place: int) -> None:
        """Ask for one long stream after the other."""
        while True:
            body = _asked(f"tell story {place}", 1500) | {"stream": True}
            end = "cut off"
            async with self._client.stream("POST", CHAT, json=body) as stream:
                async for line in stream.aiter_lines():
                    if '"replica_lost"' in line:
                        end = f"{stream.status_code} and replica_lost"
                    elif "finish_reason" in line:
                        end = "done"
            self.ends[f"stream: {end}"] += 1

    async def short(self) -> None:
        """Ask for one short answer after the other."""
        while True:
            answer = await self._client.post(CHAT, json=_asked("hello", 4))
            self.ends[f"short: {answer.status_code}"] += 1


def _asked(text: str, tokens: int) -> dict[str, object]:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": tokens, "ignore_eos": True}


async def replicas(client: httpx.AsyncClient) -> int:
    """Return the number of replicas that accept requests: only these report metrics."""
    lines = (await client.get("/metrics")).text.splitlines()
    return sum(line.startswith("tinyllm:num_requests_running{") for line in lines)


async def until(holds: Callable[[], Awaitable[bool]]) -> float:
    """Wait until a condition holds, and return the seconds that it took.

    Raises:
        TimeoutError: if the condition does not hold within `PATIENCE` seconds.
    """
    began = time.perf_counter()
    while not await holds():
        if time.perf_counter() - began > PATIENCE:
            raise TimeoutError(f"expected it within {PATIENCE} s")
        await asyncio.sleep(0.1)
    return time.perf_counter() - began


async def run(url: str) -> None:
    """Run all parts of the measurement, and print a row for each."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        load = Load(client)

        async def are(count: int) -> bool:
            return await replicas(client) == count

        async def part(name: str, work: Awaitable[float]) -> None:
            load.ends.clear()
            seconds = await work
            ends = ", ".join(f"{count} {end}" for end, count in sorted(load.ends.items()))
            print(f"| {name} | {seconds:.1f} | {ends} |", flush=True)

        async def killed() -> float:
            await asyncio.sleep(1)
            os.kill(min(replica_processes()), signal.SIGKILL)
            await until(lambda: are(1))
            return await until(lambda: are(2))

        async def replaced() -> float:
            began = time.perf_counter()
            command = [sys.executable, "-m", "tinyllm_serve", *OPTIONS, "--update"]
            update = await asyncio.create_subprocess_exec(*command, "--served-model-name", "second")
            if await update.wait():
                raise RuntimeError("expected the update to end with 0")
            return time.perf_counter() - began

        asking = [asyncio.create_task(load.long(place)) for place in range(LONG_ANSWERS)]
        asking.append(asyncio.create_task(load.short()))
        await part("a second replica comes", until(lambda: are(2)))
        await part("a replica is killed, until another takes requests", killed())
        await part("both are replaced by `--update`", replaced())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await part("no requests, until one replica has stopped", until(lambda: are(1)))


def main() -> None:
    """Print the table."""
    print("| what happens | seconds | how requests ended meanwhile |\n|---|---:|---|")
    with Server(*OPTIONS, ready=False) as server:
        server.wait_for("ready", 300.0)
        asyncio.run(run(server.url))


if __name__ == "__main__":
    main()
