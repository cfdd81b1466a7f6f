"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from secrets import token_hex

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.requests import Request

from tinyllm_serve.generation.generate import Generation
from tinyllm_serve.generation.threads import run_in_thread
from tinyllm_serve.http.api_key import client_of
from tinyllm_serve.http.body import BodyRoute, clear_body, discard_body
from tinyllm_serve.http.errors import AnthropicErrorBody, renamed_fields
from tinyllm_serve.http.json_text import JsonObject, JsonText
from tinyllm_serve.http.request_log import log_fields
from tinyllm_serve.http.sse import STREAM_RESPONSE, EventStream
from tinyllm_serve.protocol.anthropic import (
    CountTokensRequest,
    MessageBody,
    MessagesRequest,
    TokenCount,
)
from tinyllm_serve.protocol.base import MAX_NAME
from tinyllm_serve.protocol.chat import ChatRequest
from tinyllm_serve.routes.chat import count_prompt, start_chat
from tinyllm_serve.routes.dependencies import ModelService
from tinyllm_serve.routes.messages_input import as_chat
from tinyllm_serve.routes.messages_output import ContentBlocks
from tinyllm_serve.service import Service

CHAT_FIELDS = {"stop": "stop_sequences", "response_format": "output_config.format"}
"""The endpoint's name for each field that chat completions name differently."""

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}

_ERRORS: dict[int | str, JsonObject] = {
    "4XX": {"model": AnthropicErrorBody},
    "5XX": {"model": AnthropicErrorBody},
}

router = APIRouter(tags=["messages"], route_class=BodyRoute, responses=_ERRORS)


@router.post("/v1/messages", response_model=MessageBody, responses=STREAM_RESPONSE)
async def messages(body: MessagesRequest, request: Request, service: ModelService) -> Response:
    """Continue a conversation. With `stream` the response is named server-sent events."""
    if body.metadata is not None and body.metadata.user_id is not None:
        log_fields(request)["user"] = body.metadata.user_id[:MAX_NAME]
    stream = body.stream
    with renamed_fields(CHAT_FIELDS):
        chat = await _as_chat(body, request, service)
        generation = await start_chat(service, chat, request)
    discard_body(request, chat)
    response = MessageResponse(service, generation)
    if stream:
        return EventStream(response.events(), service.settings.sse_keep_alive)
    return JsonText(await response.last())


@router.post("/v1/messages/count_tokens")
async def count_tokens(
    body: CountTokensRequest, request: Request, service: ModelService
) -> TokenCount:
    """Return the number of tokens of a conversation's prompt, tools included."""
    service.check_model(body.model)
    chat = await _as_chat(body, request, service)
    return TokenCount(input_tokens=await count_prompt(service, chat, request))


async def _as_chat(body: CountTokensRequest, request: Request, service: Service) -> ChatRequest:
    """Convert a request, clear it, and write to the log line what was left out of it."""
    with renamed_fields(CHAT_FIELDS):
        chat, left_out = await run_in_thread(
            service.rate_limiter, client_of(request), as_chat, body
        )
    log_fields(request).update(left_out)
    clear_body(body)
    return chat


class MessageResponse:
    """Converts an answer to Anthropic's events. Call either `events` or `last`, once."""

    def __init__(self, service: Service, generation: Generation) -> None:
        """Prepare the events of a generation."""
        self._name = service.name
        self._generation = generation
        self._blocks = ContentBlocks()
        self._stop: JsonObject = {"stop_reason": None, "stop_sequence": None}
        self._id = f"msg_{token_hex(12)}"

    async def events(self) -> AsyncGenerator[JsonObject, None]:
        """Yield the events of a stream."""
        with renamed_fields(CHAT_FIELDS):
            async with aclosing(self._generation.tokens()) as tokens:
                async for token in tokens:
                    if token.is_first:
                        yield {"type": "message_start", "message": self._body}
                    for part in token.parts:
                        for event in self._blocks.add(part):
                            yield event
                    if token.finish_reason is not None:
                        self._stop = _stop(token.finish_reason, token.output.stop)
        for event in self._blocks.close():
            yield event
        yield {"type": "message_delta", "delta": self._stop, "usage": self._usage}
        yield {"type": "message_stop"}

    async def last(self) -> JsonObject:
        """Return the complete response."""
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        return self._body

    @property
    def _body(self) -> JsonObject:
        """The response so far."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._name,
            "content": list(self._blocks.bodies),
            **self._stop,
            "usage": self._usage,
        }

    @property
    def _usage(self) -> JsonObject:
        """The token counts so far. Tokens enter the cache at no charge: none count as created."""
        counts = self._generation.usage
        cached = counts.prompt_tokens_details.cached_tokens
        return {
            "input_tokens": counts.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": counts.completion_tokens,
        }


def _stop(finish_reason: str, stop: str | None) -> JsonObject:
    """Return the fields for the reason of an answer's end."""
    if finish_reason == "stop" and stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": _STOP_REASONS.get(finish_reason, "end_turn"), "stop_sequence": None}
