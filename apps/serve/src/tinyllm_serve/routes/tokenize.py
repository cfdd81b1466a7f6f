"""POST /tokenize and /detokenize."""

import asyncio

from fastapi import APIRouter
from pydantic import BaseModel, Field

from tinyllm_serve.generation.prompt import Prompt
from tinyllm_serve.http.body import BodyRoute
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.protocol.base import (
    MAX_ITEMS,
    MAX_TOKENS,
    MAX_TOOLS,
    ListOf,
    Strict,
)
from tinyllm_serve.protocol.chat import TemplateVariables
from tinyllm_serve.protocol.completions import TokenId
from tinyllm_serve.protocol.messages import Message
from tinyllm_serve.protocol.tools import Tool
from tinyllm_serve.routes.dependencies import ModelService
from tinyllm_serve.service import Service


class TokenizeText(Strict):
    """A text to tokenize as it is."""

    model: str | None = None
    prompt: str


class TokenizeChat(Strict):
    """A conversation to tokenize as the chat template renders it."""

    model: str | None = None
    messages: ListOf[Message] = Field(min_length=1, max_length=MAX_ITEMS)
    tools: ListOf[Tool] | None = Field(default=None, max_length=MAX_TOOLS)
    chat_template_kwargs: TemplateVariables = TemplateVariables()


class TokenizeResponse(BaseModel):
    """Tokens, their number, and the model's context length."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(Strict):
    """Tokens to convert to text."""

    model: str | None = None
    tokens: ListOf[TokenId] = Field(max_length=MAX_TOKENS)


class DetokenizeResponse(BaseModel):
    """The text of tokens, special tokens included."""

    prompt: str


router = APIRouter(tags=["tokens"], route_class=BodyRoute)


def _encode(service: Service, body: TokenizeText | TokenizeChat) -> list[int]:
    if isinstance(body, TokenizeText):
        return service.tokenizer.encode(body.prompt)
    prompt = Prompt.of_chat(
        service.tokenizer, body.messages, body.tools or [], body.chat_template_kwargs
    )
    return prompt.tokens


@router.post("/tokenize")
async def tokenize(body: TokenizeText | TokenizeChat, service: ModelService) -> TokenizeResponse:
    """Return the tokens of a text or of a conversation."""
    service.check_ready()
    service.check_model(body.model)
    tokens = await asyncio.to_thread(_encode, service, body)
    return TokenizeResponse(tokens=tokens, count=len(tokens), max_model_len=service.context_length)


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, service: ModelService) -> DetokenizeResponse:
    """Return the text of tokens."""
    service.check_ready()
    service.check_model(body.model)
    vocab_size = service.engine.config.vocab_size
    if max(body.tokens, default=0) >= vocab_size:
        message = f"tokens: expected ids below {vocab_size}, got {max(body.tokens)}"
        raise ApiError(400, message, param="tokens")
    tokenizer = service.tokenizer
    text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special_tokens=False)
    return DetokenizeResponse(prompt=text)
