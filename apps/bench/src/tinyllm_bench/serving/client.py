"""Sends a load to a server, and notes when its answers come."""

import asyncio
import json
import time

import httpx

from tinyllm_bench.serving.load import Arrival, Load
from tinyllm_bench.serving.reply import Reply

_PATIENCE = 600.0  # seconds


async def send(load: Load, url: str, extra: dict[str, object]) -> list[Reply]:
    """Send all requests at their times, and wait for all answers.

    Args:
        load: the requests.
        url: of the server.
        extra: fields that this server takes beside the usual ones.
    """
    free = asyncio.Semaphore(load.concurrency)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE, limits=limits) as client:
        began = time.perf_counter()

        async def ask(arrival: Arrival) -> Reply:
            await asyncio.sleep(began + arrival.seconds - time.perf_counter())
            async with free:
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
            if response.status_code != 200:
                reply.error = f"HTTP status {response.status_code}"
                return reply
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    _take(json.loads(line.removeprefix("data: ")), reply)
    except httpx.HTTPError as error:
        reply.error = str(error) or type(error).__name__
    if not reply.pieces:
        reply.error = reply.error or "an answer without text"
    return reply


def _take(chunk: dict[str, object], reply: Reply) -> None:
    """Note a chunk of a stream."""
    choices, usage = chunk.get("choices"), chunk.get("usage")
    if isinstance(choices, list) and choices and choices[0].get("text"):
        reply.pieces.append(time.perf_counter())
        reply.tokens = max(reply.tokens, len(reply.pieces))
    if isinstance(usage, dict):
        reply.prompt_tokens = usage.get("prompt_tokens", 0)
        reply.tokens = usage.get("completion_tokens", reply.tokens)
        reply.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
