"""Bodies are not kept while their answers are generated."""

import asyncio
import gc
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tinyllm_serve.application import make_application
from tinyllm_serve.generation.generate import AnswerToken, Generation
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
LONG = "<long>"  # becomes a text of `LENGTH` characters
MARK = "body of a client: "
LENGTH = 4000
SECONDS = 20.0

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
ANTHROPIC = {**HELLO, "model": "endless", "max_tokens": 5}
IMAGE = {"type": "image_url", "image_url": {"url": LONG}}
CALL = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
CALLED = {"role": "assistant", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c", "content": [IMAGE]}
TOOL = {"type": "function", "function": {"name": "f", "description": LONG}}
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "s", "description": LONG, "schema": {"type": "string"}},
}
CACHED = {"type": "text", "text": "hello", "cache_control": {"a": LONG}, "b": LONG, LONG: 1}

CASES: dict[str, tuple[str, dict[str, object]]] = {
    "message": (CHAT, {"messages": [{"role": "user", "content": LONG}]}),
    "image": (CHAT, {"messages": [*HELLO["messages"], CALLED, RESULT]}),
    "tools": (CHAT, {**HELLO, "tools": [TOOL], "tool_choice": "none"}),
    "format": (CHAT, {**HELLO, "response_format": FORMAT}),
    "metadata": (CHAT, {**HELLO, "metadata": {LONG: "a"}}),
    "prompt": (COMPLETIONS, {"prompt": [LONG, "a"]}),
    "completion format": (COMPLETIONS, {"prompt": "a", "response_format": FORMAT}),
    "input": (RESPONSES, {"input": LONG}),
    "client metadata": (RESPONSES, {"input": "a", "client_metadata": {LONG: "a"}}),
    "system": (MESSAGES, {**ANTHROPIC, "system": LONG}),
    "Anthropic tools": (
        MESSAGES,
        {
            **ANTHROPIC,
            "tools": [{"name": "f", "description": LONG, "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "none"},
        },
    ),
    "cache_control": (MESSAGES, {**ANTHROPIC, "cache_control": {"a": LONG}}),
    "user": (MESSAGES, {**ANTHROPIC, "metadata": {"a": LONG, LONG: 1}}),
    "unknown": (MESSAGES, {**ANTHROPIC, "a": [LONG], LONG: 1}),
    "block": (MESSAGES, {**ANTHROPIC, "messages": [{"role": "user", "content": [CACHED]}]}),
}


def encoded(fields: dict[str, object]) -> bytes:
    """Return a body. The long text is in no `str` of the test."""
    text = (MARK * LENGTH)[:LENGTH].encode()
    return json.dumps(fields).encode().replace(LONG.encode(), text)


def kept_texts() -> Iterator[str]:
    """Yield the long texts of bodies that objects of this process refer to."""
    gc.collect()
    for each in gc.get_objects():
        waiting = [each]
        while waiting:
            for value in gc.get_referents(waiting.pop()):
                if isinstance(value, str):
                    if len(value) >= LENGTH and MARK in value:
                        yield value
                elif isinstance(value, dict | list | tuple) and not gc.is_tracked(value):
                    waiting.append(value)  # the collector tracks no dictionary of texts alone


@asynccontextmanager
async def never_answers(
    monkeypatch: pytest.MonkeyPatch, model: Path, **settings: Any
) -> AsyncGenerator[tuple[httpx.AsyncClient, asyncio.Event], None]:
    """Serve a model that gives no tokens; yield a client, and the event of an answer that waits."""
    waiting = asyncio.Event()

    async def tokens(_generation: Generation) -> AsyncGenerator[AnswerToken, None]:
        waiting.set()
        await asyncio.Event().wait()
        raise AssertionError
        yield  # makes this a generator

    monkeypatch.setattr(Generation, "tokens", tokens)
    service = Service(Settings(model=str(model), kv_cache_memory=0.2, **settings))
    await service.start()
    transport = httpx.ASGITransport(make_application(service))
    async with (
        asyncio.timeout(SECONDS),
        httpx.AsyncClient(
            transport=transport,
            base_url="http://localhost",
            headers={"Content-Type": "application/json"},
            timeout=None,
        ) as client,
    ):
        yield client, waiting
    await service.close()


async def begin(
    client: httpx.AsyncClient, waiting: asyncio.Event, path: str, content: bytes
) -> asyncio.Task[httpx.Response]:
    """Send a request; return its task when it waits for tokens, or is done."""
    waiting.clear()
    post = asyncio.create_task(client.post(path, content=content))
    started = asyncio.create_task(waiting.wait())
    await asyncio.wait({post, started}, return_when=asyncio.FIRST_COMPLETED)
    started.cancel()
    return post


def test_no_field_is_kept_until_the_answer_has_ended(
    monkeypatch: pytest.MonkeyPatch, endless: Path
) -> None:
    async def kept() -> dict[str, int]:
        found = {}
        async with never_answers(monkeypatch, endless) as (client, waiting):
            for name, (path, fields) in CASES.items():
                for stream in (False, True):
                    content = encoded({**fields, "stream": stream})
                    post = await begin(client, waiting, path, content)
                    assert not post.done(), post.result().text
                    await asyncio.sleep(0.05)  # the event loop and the thread let go of the result
                    found[f"{name}, stream: {stream}"] = len(list(kept_texts()))
                    post.cancel()
                    await asyncio.wait({post})
        return {name: count for name, count in found.items() if count}

    assert asyncio.run(kept()) == {}


def test_a_response_that_repeats_a_long_body_holds_its_memory(
    monkeypatch: pytest.MonkeyPatch, endless: Path
) -> None:
    text = "a" * 450_000  # the memory of two bodies
    tools = [{"type": "function", "name": "f", "description": text}]
    short = {"input": "hi", "stream": True}
    repeats = {**short, "tool_choice": "none", "tools": tools}
    result = {"call_id": "c", "output": [{"type": "input_image", "image_url": text}]}
    items = [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", **result},
    ]
    discards = {**short, "input": items}

    async def statuses() -> list[int | None]:
        options = {"max_body_memory": 1_000_000}
        async with never_answers(monkeypatch, endless, **options) as (client, waiting):

            async def status(body: dict[str, object]) -> int | None:
                """Return the status of a response; None if it waits for tokens."""
                posts.append(await begin(client, waiting, RESPONSES, json.dumps(body).encode()))
                return posts[-1].result().status_code if posts[-1].done() else None

            posts: list[asyncio.Task[httpx.Response]] = []
            found = [await status(body) for body in (discards, discards, repeats)]
            found += [await status(body) for body in (repeats, repeats, short)]
            for post in posts:
                post.cancel()
            await asyncio.wait(posts)
            return [*found, await status(repeats)]

    held = [None, None, None, None, 503, None, None]
    assert asyncio.run(statuses()) == held
