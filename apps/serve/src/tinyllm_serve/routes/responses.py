"""POST /v1/responses and /v1/responses/input_tokens."""

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from secrets import token_hex

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.requests import Request

from tinyllm_serve.generation.generate import Generation
from tinyllm_serve.generation.threads import run_in_thread
from tinyllm_serve.http.api_key import client_of
from tinyllm_serve.http.body import BodyRoute, clear_body, discard_body
from tinyllm_serve.http.body_limit import hold_memory
from tinyllm_serve.http.errors import TOO_LONG, ApiError, failed_response, renamed_fields
from tinyllm_serve.http.json_text import JsonObject, JsonText, json_bytes
from tinyllm_serve.http.request_log import log_fields
from tinyllm_serve.http.sse import STREAM_RESPONSE, EventStream
from tinyllm_serve.protocol.base import UsageBody
from tinyllm_serve.protocol.chat import ChatRequest
from tinyllm_serve.protocol.output_format import TextFormat
from tinyllm_serve.protocol.responses import (
    InputTokens,
    InputTokensRequest,
    ResponseBody,
    ResponseRequest,
)
from tinyllm_serve.protocol.tools import NamedFunction
from tinyllm_serve.routes.chat import count_prompt, start_chat
from tinyllm_serve.routes.dependencies import ModelService
from tinyllm_serve.routes.responses_input import as_chat
from tinyllm_serve.routes.responses_output import OutputItems
from tinyllm_serve.service import Service

CHAT_FIELDS = {
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text.format",
}
"""The endpoint's name for each field that chat completions name differently."""

_REPEATED = {
    "instructions",
    "max_output_tokens",
    "prompt_cache_key",
    "safety_identifier",
    "user",
}
"""Fields of the request that the response repeats."""

router = APIRouter(tags=["responses"], route_class=BodyRoute)


@router.post("/v1/responses", response_model=ResponseBody, responses=STREAM_RESPONSE)
async def responses(body: ResponseRequest, request: Request, service: ModelService) -> Response:
    """Continue a conversation. With `stream` the response is named server-sent events."""
    log = log_fields(request)
    log["user"] = body.end_user
    log["tools_left_out"] = len(body.hosted) or None
    log["images_left_out"] = body.images_left_out or None
    stream, encoded = body.stream, bool(body.include)
    with renamed_fields(CHAT_FIELDS):
        chat, repeated, size = await run_in_thread(
            service.rate_limiter, client_of(request), _prepare, service, body
        )
    clear_body(body)
    response = ModelResponse(service, repeated, encoded=encoded)
    try:
        with renamed_fields(CHAT_FIELDS):
            generation = await start_chat(service, chat, request)
    except ApiError as error:
        if not stream or error.code != TOO_LONG:
            raise
        events = response.refused(error)
    else:
        events = response.events(generation)
    discard_body(request, chat)
    hold_memory(request.scope, size)
    if stream:
        return EventStream(events, service.settings.sse_keep_alive, failure=response.failure)
    return JsonText(await _last(events))


@router.post("/v1/responses/input_tokens")
async def input_tokens(
    body: InputTokensRequest, request: Request, service: ModelService
) -> InputTokens:
    """Return the number of tokens of a conversation's prompt, tools included."""
    service.check_model(body.model)
    with renamed_fields(CHAT_FIELDS):
        chat = await run_in_thread(service.rate_limiter, client_of(request), as_chat, body)
        return InputTokens(input_tokens=await count_prompt(service, chat, request))


async def _last(source: AsyncGenerator[JsonObject, None]) -> JsonObject:
    """Return the complete response, which the last event has."""
    response: object = None
    async with aclosing(source) as events:
        async for event in events:
            response = event.get("response")
    assert isinstance(response, dict)
    return response


def _prepare(service: Service, body: ResponseRequest) -> tuple[ChatRequest, JsonObject, int]:
    """Return the request to chat completions, and the fields that the response repeats.

    The number is their bytes as JSON. Fields that the request leaves out have the server's
    defaults.
    """
    sampling = service.defaults.sampling(temperature=body.temperature, top_p=body.top_p)
    output_format = body.text.format if body.text else None
    chosen = body.tool_choice
    repeated: JsonObject = {
        **body.model_dump(include=_REPEATED),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "reasoning": {
            "effort": None if body.reasoning is None else body.reasoning.effort,
            "summary": None,
        },
        "text": {
            "format": (output_format or TextFormat(type="text")).model_dump(by_alias=True),
            "verbosity": "medium",
        },
        "tool_choice": chosen.model_dump()
        if isinstance(chosen, NamedFunction)
        else chosen or "auto",
        "tools": [tool.model_dump() for tool in body.functions],
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
    }
    return as_chat(body), repeated, len(json_bytes(repeated))


class ModelResponse:
    """Converts an answer to OpenAI's events. The last event has the whole response.

    Call either `events` or `refused`, once.
    """

    def __init__(self, service: Service, repeated: JsonObject, *, encoded: bool) -> None:
        """Prepare the events of a response, whose fields `repeated` are those of the request.

        With `encoded`, reasoning items have `encrypted_content`.
        """
        self._service = service
        self._repeated = repeated
        self._items = OutputItems(encoded=encoded)
        self._id = f"resp_{token_hex(12)}"
        self._created = int(time.time())
        self._number = 0

    async def events(self, generation: Generation) -> AsyncGenerator[JsonObject, None]:
        """Yield the events of a generation."""
        try:
            with renamed_fields(CHAT_FIELDS):
                async with aclosing(generation.tokens()) as tokens:
                    async for token in tokens:
                        if token.is_first:
                            for event in self._start():
                                yield event
                        for part in token.parts:
                            for event in self._items.add(part):
                                yield self._numbered(event)
        except ApiError as error:
            if self._number or error.code != TOO_LONG:
                raise
            async for event in self.refused(error):
                yield event
        is_cut = generation.answers[0].finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        for event in self._items.close(status):
            yield self._numbered(event)
        response = self._body_of(status, generation.usage)
        yield self._numbered({"type": f"response.{status}", "response": response})

    async def refused(self, error: ApiError) -> AsyncGenerator[JsonObject, None]:
        """Yield the events before the error of a prompt that is too long.

        OpenAI's server sends the error in a stream, and Codex compacts a conversation only after
        such an error.
        """
        for event in self._start():
            yield event
        raise error

    def failure(self, error: ApiError) -> Iterator[JsonObject]:
        """Yield the last events of a stream that has failed."""
        if not self._number:  # comments alone were sent
            yield from self._start()
        yield from failed_response(error, self._body_of("failed"), self._number)

    def _start(self) -> Iterator[JsonObject]:
        """Yield the first events."""
        start = self._body_of("in_progress")
        for kind in ("created", "in_progress"):
            yield self._numbered({"type": f"response.{kind}", "response": start})

    def _numbered(self, event: JsonObject) -> JsonObject:
        """Return an event with its number in the stream."""
        self._number += 1
        return {**event, "sequence_number": self._number - 1}

    def _body_of(self, status: str, counts: UsageBody | None = None) -> JsonObject:
        """Return the response with a status."""
        usage = None
        if counts is not None:
            usage = {
                "input_tokens": counts.prompt_tokens,
                # A token enters the cache at no charge, so that none counts as written.
                "input_tokens_details": {
                    **counts.prompt_tokens_details.model_dump(),
                    "cache_write_tokens": 0,
                },
                "output_tokens": counts.completion_tokens,
                "output_tokens_details": counts.completion_tokens_details.model_dump(),
                "total_tokens": counts.total_tokens,
            }
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "model": self._service.name,
            "output": list(self._items.bodies),
            "usage": usage,
            "error": None,
            "incomplete_details": reason,
            **self._repeated,
            "background": False,
            "max_tool_calls": None,
            "previous_response_id": None,
            "service_tier": "default",
            "store": False,
            "top_logprobs": 0,
            "truncation": "disabled",
        }
