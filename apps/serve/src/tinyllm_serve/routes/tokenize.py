"""POST /tokenize and /detokenize."""

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Discriminator, Field, Tag, model_validator
from starlette.requests import Request

from tinyllm_serve.generation.prompt import Prompt, length_errors
from tinyllm_serve.generation.threads import run_in_thread
from tinyllm_serve.http.api_key import client_of
from tinyllm_serve.http.body import BodyRoute
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.protocol.base import (
    MAX_ITEMS,
    MAX_TOKENS,
    MAX_TOOLS,
    ListOf,
    Strict,
    expect,
)
from tinyllm_serve.protocol.chat import PromptEnd, TemplateVariables
from tinyllm_serve.protocol.completions import TokenId
from tinyllm_serve.protocol.messages import Message
from tinyllm_serve.protocol.tools import Tool
from tinyllm_serve.routes.dependencies import ModelService
from tinyllm_serve.service import Service

MAX_TEXT_TOKENS = 1 << 18
"""The most tokens of a request, unless the model's context is longer. They are up to 30 MB."""


class _Tokenize(Strict):
    """Fields of texts and of conversations."""

    @model_validator(mode="before")
    @classmethod
    def _one(cls, body: object) -> object:
        if isinstance(body, dict) and None not in (body.get("prompt"), body.get("messages")):
            raise ValueError("prompt, messages: expected one of them, got both")
        return body

    model: str | None = None
    add_special_tokens: bool | None = Field(
        default=None,
        description="Add the special tokens of tokenizer.json, such as the end token of "
        "Qwen3-Embedding: by default to texts, as in /v1/embeddings. The prompts of completions "
        "never have them.",
    )
    return_token_strs: Annotated[
        Literal[False] | None, expect("expected false: /detokenize has the text of tokens")
    ] = None


class TokenizeText(_Tokenize):
    """A text to tokenize as it is."""

    prompt: str


class TokenizeChat(_Tokenize, PromptEnd):
    """A conversation to tokenize as the chat template renders it."""

    messages: ListOf[Message] = Field(min_length=1, max_length=MAX_ITEMS)
    tools: ListOf[Tool] | None = Field(default=None, max_length=MAX_TOOLS)
    chat_template_kwargs: TemplateVariables = TemplateVariables()


def _form(body: object) -> str:
    """Return the name of the class of a body: that of conversations for a body with messages."""
    has_messages = isinstance(body, dict) and body.get("messages") is not None
    is_chat = isinstance(body, TokenizeChat) or has_messages
    return "TokenizeChat" if is_chat else "TokenizeText"


TokenizeRequest = Annotated[
    Annotated[TokenizeText, Tag("TokenizeText")] | Annotated[TokenizeChat, Tag("TokenizeChat")],
    Discriminator(_form),
]


class TokenizeResponse(BaseModel):
    """Tokens, their number, and the most tokens of a prompt and its answer."""

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
    limit = _max_tokens(service)
    if isinstance(body, TokenizeText):
        special = body.add_special_tokens is not False
        with length_errors("prompt"):
            return service.tokenizer.encode(
                body.prompt, add_special_tokens=special, max_tokens=limit
            )
    if body.add_special_tokens and service.tokenizer.encode("", add_special_tokens=True):
        message = (
            "add_special_tokens: expected false, because this tokenizer adds tokens that no prompt "
            "of a conversation has: leave it out"
        )
        raise ApiError(400, message, param="add_special_tokens")
    prompt = Prompt.of_chat(
        service.tokenizer,
        body.messages,
        body.tools or [],
        body.chat_template_kwargs.over(service.template_defaults),
        max_tokens=limit,
        continues=body.continue_final_message or False,
        allow_special_tokens=service.settings.allow_special_tokens,
    )
    return prompt.tokens


def _max_tokens(service: Service) -> int:
    """Return the most tokens of a request: more than a prompt may have, but a bounded number."""
    return max(service.context_length, MAX_TEXT_TOKENS)


@router.post("/tokenize")
async def tokenize(
    body: TokenizeRequest, request: Request, service: ModelService
) -> TokenizeResponse:
    """Return the tokens of a text or of a conversation."""
    service.check_model(body.model)
    tokens = await run_in_thread(service.rate_limiter, client_of(request), _encode, service, body)
    return TokenizeResponse(tokens=tokens, count=len(tokens), max_model_len=service.max_model_len)


@router.post("/detokenize")
async def detokenize(
    body: DetokenizeRequest, request: Request, service: ModelService
) -> DetokenizeResponse:
    """Return the text of tokens."""
    service.check_model(body.model)
    vocab_size = service.engine.config.vocab_size
    if max(body.tokens, default=0) >= vocab_size:
        message = f"tokens: expected ids below {vocab_size}, got {max(body.tokens)}"
        raise ApiError(400, message, param="tokens")
    if len(body.tokens) > _max_tokens(service):
        message = f"tokens: expected at most {_max_tokens(service)}, got {len(body.tokens)}"
        raise ApiError(400, message, param="tokens")
    text = await run_in_thread(
        service.rate_limiter,
        client_of(request),
        service.tokenizer.decode,
        body.tokens,
        skip_special_tokens=False,
    )
    return DetokenizeResponse(prompt=text)
