"""POST /tokenize and /detokenize."""

import asyncio
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from tinyllm_serve.api_error import ApiError
from tinyllm_serve.prompt import Prompt
from tinyllm_serve.schemas.completion_request import TokenId
from tinyllm_serve.schemas.messages import Message
from tinyllm_serve.schemas.strict import Strict
from tinyllm_serve.schemas.template_variables import TemplateVariables
from tinyllm_serve.schemas.tools import Tool
from tinyllm_serve.service import Service


class TokenizeText(Strict):
    """A text as it is."""

    model: str | None = None
    prompt: str


class TokenizeChat(Strict):
    """A conversation, as the chat template renders it."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Tool] | None = None
    chat_template_kwargs: TemplateVariables = TemplateVariables()


class TokenizeAnswer(BaseModel):
    """Tokens, and how many of them the model can take."""

    tokens: list[int]
    count: int
    max_model_len: int


class Detokenize(Strict):
    """Tokens."""

    model: str | None = None
    tokens: list[TokenId]


class DetokenizeAnswer(BaseModel):
    """Their text, special tokens included."""

    prompt: str


def tokens_router(service: Service) -> APIRouter:
    """The endpoints, for a service."""
    router = APIRouter(tags=["tokens"])

    def encode(asked: TokenizeText | TokenizeChat) -> list[int]:
        if isinstance(asked, TokenizeText):
            return service.tokenizer.encode(asked.prompt)
        prompt = Prompt.of_chat(
            service.tokenizer, asked.messages, asked.tools or [], asked.chat_template_kwargs
        )
        return prompt.tokens

    @router.post("/tokenize")
    async def tokenize(asked: TokenizeText | TokenizeChat) -> TokenizeAnswer:
        """The tokens of a text, or of a conversation."""
        service.check_ready()
        service.check_model(asked.model)
        tokens = await asyncio.to_thread(encode, asked)
        return TokenizeAnswer(
            tokens=tokens, count=len(tokens), max_model_len=service.context_length
        )

    @router.post("/detokenize")
    async def detokenize(asked: Detokenize) -> DetokenizeAnswer:
        """The text of tokens."""
        service.check_ready()
        service.check_model(asked.model)
        vocab_size = service.engine.config.vocab_size
        if max(asked.tokens, default=0) >= vocab_size:
            message = f"tokens: expected ids below {vocab_size}, got {max(asked.tokens)}"
            raise ApiError(400, message, param="tokens")
        tokenizer = service.tokenizer
        text = await asyncio.to_thread(tokenizer.decode, asked.tokens, skip_special_tokens=False)
        return DetokenizeAnswer(prompt=text)

    return router
