"""A request of a client that may be slow, or gone before its answer has come."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Literal

import httpx

Outcome = Literal["answered", "left", "refused"]

_WORDS = ("rope", "norm", "head", "cache", "page", "token", "the", "a", "of", "what", "why", "is")
_CHAT = "/v1/chat/completions"
_LONGEST_PROMPT, _LONGEST_ANSWER = 600, 160


@dataclass(frozen=True)
class Visit:
    """What is asked, and how long somebody waits for it.

    Attributes:
        path: of the server.
        body: of the request.
        pieces: after so many lines of the answer the client leaves; None waits for all.
        patience: seconds after which it leaves, whatever has come; None is for ever.
        pause: seconds between two lines that it reads.
    """

    path: str
    body: dict[str, object]
    pieces: int | None = None
    patience: float | None = None
    pause: float = 0.0

    @classmethod
    def draw(cls, draw: random.Random) -> "Visit":
        """Any of the things that clients do: half of them stay, the others leave in any phase."""
        (make,) = draw.choices(list(_KINDS), list(_KINDS.values()))
        visit, fate = make(draw), draw.random()
        if fate < 0.5:
            return visit
        if fate < 0.7:
            return replace(visit, pieces=draw.randrange(1, 40))
        if fate < 0.9:
            return replace(visit, patience=draw.choice([0.0, 0.01, 0.1, 0.5, 2.0]))
        return replace(visit, pause=0.02)

    @classmethod
    def of_each_kind(cls, draw: random.Random) -> "list[Visit]":
        """One of each thing that can be asked, by a client that waits for it."""
        return [make(draw) for make in _KINDS]

    async def pay(self, client: httpx.AsyncClient) -> Outcome:
        """Ask, and read as long as there is patience.

        Raises:
            httpx.HTTPError: if there is no answer, or it is an error of the server's.
        """
        try:
            async with asyncio.timeout(self.patience):
                return await self._read(client)
        except TimeoutError:
            return "left"

    async def _read(self, client: httpx.AsyncClient) -> Outcome:
        async with client.stream("POST", self.path, json=self.body) as response:
            if response.status_code == httpx.codes.BAD_REQUEST:
                return "refused"
            response.raise_for_status()
            count = 0
            async for _ in _lines(response, self.pause):
                count += 1
                if count == self.pieces:
                    return "left"
        return "answered"


async def _lines(response: httpx.Response, pause: float) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if "error" in line[:20]:
            raise httpx.DecodingError(line, request=response.request)
        yield line
        if pause:
            await asyncio.sleep(pause)


def _embedding(draw: random.Random) -> "Visit":
    text = _text(draw)
    return Visit("/v1/embeddings", {"input": [text, text[:20]]})


def _mistake(draw: random.Random) -> "Visit":
    return Visit("/v1/completions", _wishes(draw) | {"prompt": _text(draw), "best_of": 7})


def _continuation(draw: random.Random) -> "Visit":
    return Visit("/v1/completions", _wishes(draw) | {"prompt": _text(draw), "ignore_eos": True})


def _word(draw: random.Random) -> "Visit":
    """An answer that must be one of some words."""
    schema = {"name": "word", "schema": {"enum": draw.sample(_WORDS, 3)}}
    form = {"type": "json_schema", "json_schema": schema}
    return Visit(_CHAT, _wishes(draw) | _messages(draw) | {"response_format": form})


def _chat(draw: random.Random) -> "Visit":
    more: dict[str, object] = {"n": draw.randrange(1, 4), "ignore_eos": draw.random() < 0.5}
    if draw.random() < 0.2:
        more |= {"logprobs": True, "top_logprobs": 2, "stop": [" the"], "frequency_penalty": 0.5}
    return Visit(_CHAT, _wishes(draw) | _messages(draw) | more)


_KINDS = {_chat: 60, _continuation: 20, _word: 10, _embedding: 5, _mistake: 5}  # percent


def _wishes(draw: random.Random) -> dict[str, object]:
    return {
        "max_tokens": draw.randrange(1, _LONGEST_ANSWER),
        "stream": draw.random() < 0.7,
        "temperature": draw.choice([0, 1]),
        "seed": draw.randrange(1000),
    }


def _messages(draw: random.Random) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": _text(draw)}]}


def _text(draw: random.Random) -> str:
    """Words; long texts begin alike, so that pages are shared."""
    count = draw.randrange(1, draw.choice([1, 8, 60, _LONGEST_PROMPT]) + 1)
    beginning = [*_WORDS * 4] if count > 100 else []
    return " ".join([*beginning, *draw.choices(_WORDS, k=count)])
