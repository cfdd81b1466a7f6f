"""Client that sends a load to a server and records the times of the answers."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from itertools import pairwise

import httpx

from tinyllm_bench.serving.options import Arrival, Load

_TIMEOUT = 600.0  # seconds


@dataclass
class Reply:
    """Answer to one request, with the times of its pieces."""

    sent: float  # time of the request, in seconds of a monotonic clock
    pieces: list[float] = field(default_factory=list)  # time of each piece, on the same clock
    prompt_tokens: int = 0  # tokens of the prompt, as the server counts them
    cached_tokens: int = 0  # tokens of the prompt that the server had cached
    tokens: int = 0  # tokens of the answer as the server counts them, or its pieces
    error: str | None = None  # reason why there is no answer

    @property
    def first(self) -> float:
        """Time to the first piece."""
        return self.pieces[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Times between two pieces."""
        return [after - before for before, after in pairwise(self.pieces)]


async def send(load: Load, url: str, extra: dict[str, object]) -> list[Reply]:
    """Send each request at its time, with the fields `extra`, and wait for all answers.

    The server is on this machine, so a proxy of the environment is not used.
    """
    slots = asyncio.Semaphore(load.concurrency)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=url, timeout=_TIMEOUT, limits=limits, trust_env=False
    ) as client:
        start = time.perf_counter()

        async def ask(arrival: Arrival) -> Reply:
            await asyncio.sleep(start + arrival.seconds - time.perf_counter())
            async with slots:
                return await _ask(client, arrival.prompt, load.answer_tokens, extra)

        return list(await asyncio.gather(*map(ask, load.arrivals())))


async def _ask(
    client: httpx.AsyncClient, prompt: str, tokens: int, extra: dict[str, object]
) -> Reply:
    body = {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **extra,
    }
    reply = Reply(time.perf_counter())
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                reply.error = f"HTTP status {response.status_code}"
                return reply
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    _record(json.loads(line.removeprefix("data: ")), reply)
    except httpx.HTTPError as error:
        reply.error = str(error) or type(error).__name__
    except (ValueError, RecursionError):
        reply.pieces.clear()
        reply.error = "a line that is not JSON"
    if not reply.pieces:
        reply.error = reply.error or "an answer without text"
    return reply


def _record(chunk: dict[str, object], reply: Reply) -> None:
    """Record a chunk of a stream."""
    choices, usage = chunk.get("choices"), chunk.get("usage")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if isinstance(choice, dict) and choice.get("text"):
        reply.pieces.append(time.perf_counter())
        reply.tokens = max(reply.tokens, len(reply.pieces))
    if isinstance(usage, dict):
        details = usage.get("prompt_tokens_details")
        reply.prompt_tokens = _count(usage.get("prompt_tokens"), 0)
        reply.tokens = _count(usage.get("completion_tokens"), reply.tokens)
        reply.cached_tokens = _count(
            details.get("cached_tokens") if isinstance(details, dict) else None, 0
        )


def _count(value: object, default: int) -> int:
    return value if isinstance(value, int) else default
