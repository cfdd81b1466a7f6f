"""POST /v1/embeddings."""

import asyncio
import base64
import math
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.types import Scope
from tinyllm_engine import EngineFullError
from tinyllm_engine import Request as EngineRequest

from tinyllm_serve.clients import Client
from tinyllm_serve.generation.generate import not_finite
from tinyllm_serve.generation.prompt import length_errors, token_lists
from tinyllm_serve.generation.threads import run_in_thread
from tinyllm_serve.http.api_key import client_of
from tinyllm_serve.http.body import BodyRoute, discard_body
from tinyllm_serve.http.body_limit import hold_memory
from tinyllm_serve.http.disconnect import cancel
from tinyllm_serve.http.errors import ApiError, renamed_fields
from tinyllm_serve.http.json_text import json_bytes
from tinyllm_serve.http.request_log import log_fields
from tinyllm_serve.protocol.base import EndUser, ListOf, NeutralValues, Strict
from tinyllm_serve.protocol.completions import Tokens
from tinyllm_serve.protocol.other_fields import OTHER_NAMES
from tinyllm_serve.routes.dependencies import ModelService
from tinyllm_serve.service import Service

MAX_TEXTS = 2048
"""The most texts of a request, as OpenAI's. Clients such as LangChain and LlamaIndex send hundreds
at a time."""

AT_ONCE = 4
"""The most texts of a request that are in the engine at a time. The engine computes the prompts of
several short texts in one step. A request takes four places of the queue at most."""

FLOAT_BYTES = 4
"""Bytes of a number of a result."""

Texts = Annotated[ListOf[str], Field(min_length=1, max_length=MAX_TEXTS)]
TokenLists = Annotated[ListOf[Tokens], Field(min_length=1, max_length=MAX_TEXTS)]


class EmbeddingRequest(Strict):
    """One or more texts to embed."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "add_special_tokens": "expected true: send tokens in place of texts to have none",
        "truncate_prompt_tokens": OTHER_NAMES["truncate_prompt_tokens"],
    }
    neutral: ClassVar[NeutralValues] = {"add_special_tokens": (True,)}

    model: str | None = None
    input: str | Texts | Tokens | TokenLists
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(
        default=None, description="The width of the model's hidden states; others are refused."
    )
    user: EndUser = None


class EmbeddingBody(BaseModel):
    """A unit vector, as numbers or as little-endian float32 in base64."""

    index: int
    object: Literal["embedding"] = "embedding"
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(BaseModel):
    """One embedding for each text."""

    object: Literal["list"] = "list"
    data: list[EmbeddingBody]
    model: str
    usage: EmbeddingUsage


router = APIRouter(tags=["embeddings"], route_class=BodyRoute)


@router.post("/v1/embeddings", response_model=EmbeddingResponse)
async def embeddings(body: EmbeddingRequest, request: Request, service: ModelService) -> Response:
    """Embed texts: the last token's hidden state, scaled to length 1."""
    service.check_model(body.model)
    width = service.engine.config.hidden_size
    if body.dimensions not in (None, width):
        message = (
            f"dimensions: expected {width}, the width of the model's hidden states, "
            f"got {body.dimensions}: leave it out"
        )
        raise ApiError(400, message, param="dimensions")
    client = client_of(request)
    texts = await run_in_thread(service.rate_limiter, client, _tokens, service, body)
    log = log_fields(request)
    log["user"] = body.user
    log["prompt_tokens"] = count = sum(map(len, texts))
    as_text = body.encoding_format == "base64"
    discard_body(request, body)
    vectors = await _embed(service, client, texts, request.scope)
    head = {
        "object": "list",
        "model": service.name,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }
    pieces = _json(head, vectors, as_text=as_text)
    return StreamingResponse(pieces, media_type="application/json")


def _tokens(service: Service, body: EmbeddingRequest) -> list[Sequence[int]]:
    """Return the tokens of each text, in 4 bytes a token: a list of integers takes ten times that.

    Raises:
        ApiError: 400 if the engine can never serve one of the texts.
    """
    given, texts = body.input, list[Sequence[int]]()
    is_single = isinstance(given, str) or isinstance(given[0], int)
    # Qwen3-Embedding pools at the end token that tokenizer.json appends.
    lists = token_lists(given, service.tokenizer, service.max_prompt, add_special_tokens=True)
    while True:
        field = "input" if is_single else f"input.{len(texts)}"
        with length_errors(field, service.max_model_len), renamed_fields({"prompt": field}):
            tokens = next(lists, None)
            if tokens is None:
                return texts
            service.engine.check(EngineRequest(tokens, embedding=True))
        texts.append(array("i", tokens))


async def _embed(
    service: Service, client: Client, texts: Sequence[Sequence[int]], scope: Scope
) -> Sequence[Sequence[float]]:
    """Return the embedding of each text of a request. The first error ends the work on all texts.

    Raises:
        EngineFullError: if the queue is full before the first text is computed.
        ApiError: 503 if the results of all requests together take too much memory.
    """
    hold_memory(scope, len(texts) * service.engine.config.hidden_size * FLOAT_BYTES)
    vectors = [await _vector(service, client, texts[0], waits=False), *[()] * (len(texts) - 1)]
    waiting = enumerate(texts[1:], 1)

    async def embed_waiting() -> None:
        for index, tokens in waiting:
            vectors[index] = await _vector(service, client, tokens, waits=True)

    tasks = [asyncio.create_task(embed_waiting()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel(*tasks)
    return vectors


async def _vector(
    service: Service, client: Client, tokens: Sequence[int], *, waits: bool
) -> Sequence[float]:
    """Return the embedding of one text. With `waits`, wait for a place in the queue.

    Raises:
        EngineFullError: if the queue is full, without `waits`.
        ApiError: 500 if the model computes NaN.
    """
    async with service.rate_limiter.acquire(client, refuses=False):
        while True:
            try:
                vector = await service.engine.embed(
                    tokens,
                    tenant=client.tenant,
                    weight=client.weight,
                    cache_salt=client.salt(None),
                )
            except EngineFullError as error:
                if not waits:
                    raise
                await asyncio.sleep(error.retry_after)
            else:
                if not all(map(math.isfinite, vector)):
                    raise not_finite()
                return array("f", vector)


def _json(
    head: Mapping[str, object], vectors: Sequence[Sequence[float]], *, as_text: bool
) -> Iterator[bytes]:
    """Yield the response in pieces of one embedding. As one text it could take 200 MB."""
    before = b'%s,"data":[' % json_bytes(head)[:-1]
    for index, vector in enumerate(vectors):
        embedding = _base64(vector) if as_text else [*vector]
        yield before + json_bytes({"index": index, "object": "embedding", "embedding": embedding})
        before = b","
    yield b"]}"


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
