"""POST /v1/embeddings."""

import base64
import struct
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request

from tinyllm_serve.generation.text import length_errors, run_on_text
from tinyllm_serve.http.api_key import client_of
from tinyllm_serve.http.body import BodyRoute
from tinyllm_serve.http.disconnect import while_connected
from tinyllm_serve.http.errors import renamed_fields
from tinyllm_serve.http.middleware import log_fields
from tinyllm_serve.protocol.base import EndUser, Strict
from tinyllm_serve.protocol.completions import TextOrTokens, token_lists
from tinyllm_serve.routes.dependencies import ModelService

ENGINE_FIELDS = {"prompt": "input"}
"""The endpoint's name for each field that the engine names differently."""


class EmbeddingRequest(Strict):
    """One or more texts to embed."""

    model: str | None = None
    input: TextOrTokens
    encoding_format: Literal["float", "base64"] = "float"
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


@router.post("/v1/embeddings")
async def embeddings(
    body: EmbeddingRequest, request: Request, service: ModelService
) -> EmbeddingResponse:
    """Embed texts: pool the model's last hidden states, and normalize."""
    service.check_ready()
    service.check_model(body.model)
    client = client_of(request)
    with length_errors("input"):
        texts = await run_on_text(
            service.pacer,
            client,
            body.input,
            token_lists,
            body.input,
            service.tokenizer,
            service.max_prompt,
        )
    log = log_fields(request)
    log["user"] = body.user
    log["prompt_tokens"] = count = sum(map(len, texts))

    async def embed(tokens: list[int]) -> list[float]:
        async with service.pacer.turn(client):
            return await service.engine.embed(
                tokens, tenant=client.tenant, weight=client.weight, cache_salt=client.salt(None)
            )

    async def embed_all() -> list[list[float]]:
        # One after the other, so that one request takes one place in the queue.
        with renamed_fields(ENGINE_FIELDS):
            return [await embed(tokens) for tokens in texts]

    vectors = await while_connected(request, embed_all())
    return EmbeddingResponse(
        data=[
            EmbeddingBody(
                index=index,
                embedding=vector if body.encoding_format == "float" else _base64(vector),
            )
            for index, vector in enumerate(vectors)
        ],
        model=service.name,
        usage=EmbeddingUsage(prompt_tokens=count, total_tokens=count),
    )


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
