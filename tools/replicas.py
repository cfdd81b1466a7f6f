"""Measures a server with several replicas: tokens per second, and prompt tokens in caches.

    uv run --extra ray python tools/replicas.py
    uv run --extra ray python tools/replicas.py "2 replicas"    # one row alone

`AT_ONCE` clients at a time hold conversations of `TURNS` turns with pico. The prompt of a turn has
all earlier turns. A row is one server, started for this row alone and warmed up by four
conversations. Affinity raises the share of prompt tokens that a prefix cache has: a replica that
has not seen the earlier turns of a conversation computes the whole prompt.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass

import httpx
from tinyllm_serve.testing import Server

CONVERSATIONS, TURNS, AT_ONCE, TOKENS = 48, 4, 8, 48
ROWS = {
    "`serve`": (),
    "1 replica": ("--ray", "--replicas", "1"),
    "2 replicas": ("--ray", "--replicas", "2"),
    "2 replicas, `--affinity 0`": ("--ray", "--replicas", "2", "--affinity", "0"),
}
OPENING = "This is conversation {} about attention, rotary positions, caches and kernels. "


@dataclass
class Count:
    """Counts of tokens in the answers to all clients.

    Attributes:
        prompt: tokens of prompts.
        cached: prompt tokens found in a prefix cache.
        generated: tokens of answers.
    """

    prompt: int = 0
    cached: int = 0
    generated: int = 0


async def converse(client: httpx.AsyncClient, name: str, count: Count) -> None:
    """Hold one conversation; each answer has `TOKENS` tokens."""
    said = [{"role": "user", "content": OPENING.format(name) * 2 + "What is a kv cache?"}]
    for turn in range(TURNS):
        body = {"messages": said, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        answer = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
        usage = answer["usage"]
        count.prompt += usage["prompt_tokens"]
        count.cached += usage["prompt_tokens_details"]["cached_tokens"]
        count.generated += usage["completion_tokens"]
        said.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        said.append({"role": "user", "content": f"And what else? ({turn})"})


async def measure(url: str) -> tuple[Count, float]:
    """Hold all conversations; return the counts and the seconds."""
    limit, count = asyncio.Semaphore(AT_ONCE), Count()

    async def one(client: httpx.AsyncClient, place: int) -> None:
        async with limit:
            await converse(client, f"{place:04d}", count)

    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        await asyncio.gather(*(converse(client, f"warm {place}", Count()) for place in range(4)))
        began = time.perf_counter()
        await asyncio.gather(*(one(client, place) for place in range(CONVERSATIONS)))
        return count, time.perf_counter() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"some of {', '.join(ROWS)}")
    chosen = parser.parse_args().rows or [*ROWS]
    for name in chosen:
        if name not in ROWS:
            parser.error(f"ROW: expected some of {', '.join(ROWS)}, got {name!r}")
    print("| server | tokens/s | of prompts cached |\n|---|---:|---:|")
    for name in chosen:
        with Server("--page-size", "16", *ROWS[name], ready=False) as server:
            server.wait_for("ready", 300.0)
            count, seconds = asyncio.run(measure(server.url))
        rate, share = count.generated / seconds, count.cached / count.prompt
        print(f"| {name} | {rate:,.0f} | {share:.0%} |", flush=True)


if __name__ == "__main__":
    main()
