"""Random requests of clients, some of which read slowly or disconnect early."""

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
class ClientRequest:
    """A request, and the moment at which its client disconnects.

    Attributes:
        path: path of the server.
        body: body of the request.
        lines: lines of the answer after which the client disconnects, None for all lines.
        timeout: seconds after which the client disconnects, None for no limit.
        pause: seconds between two lines that the client reads.
    """

    path: str
    body: dict[str, object]
    lines: int | None = None
    timeout: float | None = None
    pause: float = 0.0

    @classmethod
    def draw(cls, draw: random.Random) -> "ClientRequest":
        """Draw a request. Half of the clients wait; other clients read slowly or disconnect."""
        (make,) = draw.choices(list(_KINDS), list(_KINDS.values()))
        request, kind = make(draw), draw.random()
        if kind < 0.5:
            return request
        if kind < 0.7:
            return replace(request, lines=draw.randrange(1, 40))
        if kind < 0.9:
            return replace(request, timeout=draw.choice([0.0, 0.01, 0.1, 0.5, 2.0]))
        return replace(request, pause=0.02)

    @classmethod
    def of_each_kind(cls, draw: random.Random) -> "list[ClientRequest]":
        """Return one request of each kind. The clients wait for the whole answer."""
        return [make(draw) for make in _KINDS]

    async def send(self, client: httpx.AsyncClient) -> Outcome:
        """Send the request and read the answer until the client disconnects.

        Raises:
            httpx.HTTPError: if there is no answer, or the server reports an error.
        """
        try:
            async with asyncio.timeout(self.timeout):
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
                if count == self.lines:
                    return "left"
        return "answered"


async def _lines(response: httpx.Response, pause: float) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        # Only the start of a line: later, "error" may be part of the answer.
        if "error" in line[:20]:
            raise httpx.DecodingError(line, request=response.request)
        yield line
        if pause:
            await asyncio.sleep(pause)


def _embedding(draw: random.Random) -> ClientRequest:
    text = _text(draw)
    return ClientRequest("/v1/embeddings", {"input": [text, text[:20]]})


def _invalid(draw: random.Random) -> ClientRequest:
    body = _options(draw) | {"prompt": _text(draw), "best_of": 7}
    return ClientRequest("/v1/completions", body)


def _completion(draw: random.Random) -> ClientRequest:
    body = _options(draw) | {"prompt": _text(draw), "ignore_eos": True}
    return ClientRequest("/v1/completions", body)


def _choice(draw: random.Random) -> ClientRequest:
    """Request an answer that is one of three words."""
    schema = {"name": "word", "schema": {"enum": draw.sample(_WORDS, 3)}}
    form = {"type": "json_schema", "json_schema": schema}
    return ClientRequest(_CHAT, _options(draw) | _messages(draw) | {"response_format": form})


def _chat(draw: random.Random) -> ClientRequest:
    more: dict[str, object] = {"n": draw.randrange(1, 4), "ignore_eos": draw.random() < 0.5}
    if draw.random() < 0.2:
        more |= {"logprobs": True, "top_logprobs": 2, "stop": [" the"], "frequency_penalty": 0.5}
    return ClientRequest(_CHAT, _options(draw) | _messages(draw) | more)


_KINDS = {_chat: 60, _completion: 20, _choice: 10, _embedding: 5, _invalid: 5}  # percent


def _options(draw: random.Random) -> dict[str, object]:
    return {
        "max_tokens": draw.randrange(1, _LONGEST_ANSWER),
        "stream": draw.random() < 0.7,
        "temperature": draw.choice([0, 1]),
        "seed": draw.randrange(1000),
    }


def _messages(draw: random.Random) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": _text(draw)}]}


def _text(draw: random.Random) -> str:
    """Draw words. Long texts have a common prefix, so that they share pages."""
    count = draw.randrange(1, draw.choice([1, 8, 60, _LONGEST_PROMPT]) + 1)
    prefix = [*_WORDS * 4] if count > 100 else []
    return " ".join([*prefix, *draw.choices(_WORDS, k=count)])
