"""POST /v1/embeddings."""

import asyncio
import base64
import struct
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request

from tinyllm_serve.disconnect import while_connected
from tinyllm_serve.field_names import EMBEDDINGS, named
from tinyllm_serve.request_note import note_of
from tinyllm_serve.schemas.completion_request import TextOrTokens
from tinyllm_serve.schemas.strict import Strict
from tinyllm_serve.service import Service
from tinyllm_serve.text_input import token_lists


class EmbeddingRequest(Strict):
    """Texts whose directions are wanted."""

    model: str | None = None
    input: TextOrTokens
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = Field(
        default=None, max_length=256, description="Written to the server's log."
    )


class Embedding(BaseModel):
    """A unit vector; in base64 as little-endian float32."""

    index: int
    object: Literal["embedding"] = "embedding"
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingAnswer(BaseModel):
    """One vector for each text."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


def embeddings_router(service: Service) -> APIRouter:
    """The endpoint, for a service."""
    router = APIRouter(tags=["embeddings"])

    @router.post("/v1/embeddings")
    async def embeddings(asked: EmbeddingRequest, request: Request) -> EmbeddingAnswer:
        """The texts' directions in the model's space: its last hidden states, pooled."""
        service.check_ready()
        service.check_model(asked.model)
        texts = await asyncio.to_thread(token_lists, asked.input, service.tokenizer)
        note = note_of(request)
        note["user"] = asked.user
        note["prompt_tokens"] = count = sum(map(len, texts))

        async def embed() -> list[list[float]]:
            with named(EMBEDDINGS):
                return [await service.engine.embed(tokens) for tokens in texts]

        vectors = await while_connected(request, embed())
        return EmbeddingAnswer(
            data=[
                Embedding(
                    index=index,
                    embedding=vector if asked.encoding_format == "float" else _packed(vector),
                )
                for index, vector in enumerate(vectors)
            ],
            model=service.name,
            usage=EmbeddingUsage(prompt_tokens=count, total_tokens=count),
        )

    return router


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
