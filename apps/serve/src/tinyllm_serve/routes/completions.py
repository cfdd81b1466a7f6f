"""POST /v1/completions."""

import asyncio
from collections.abc import AsyncGenerator

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.requests import Request as HttpRequest
from tinyllm_engine import Request

from tinyllm_serve.api_error import ApiError
from tinyllm_serve.disconnect import while_connected
from tinyllm_serve.event_stream import OR_EVENTS, EventStream
from tinyllm_serve.generation import Step, generation
from tinyllm_serve.json_answer import json_answer
from tinyllm_serve.merge import merge
from tinyllm_serve.plain_text import PlainText
from tinyllm_serve.request_note import note_of
from tinyllm_serve.response_grammar import response_grammar
from tinyllm_serve.sampling import sampling_params
from tinyllm_serve.schemas.completion_answer import CompletionAnswer
from tinyllm_serve.schemas.completion_request import CompletionRequest
from tinyllm_serve.service import Service
from tinyllm_serve.text_completion import TextCompletion
from tinyllm_serve.text_input import token_lists

DEFAULT_TOKENS = 16


def completions_router(service: Service) -> APIRouter:
    """The endpoint, for a service."""
    router = APIRouter(tags=["completions"])

    @router.post("/v1/completions", response_model=CompletionAnswer, responses=OR_EVENTS)
    async def completions(asked: CompletionRequest, request: HttpRequest) -> Response:
        """Go on with a text; with `stream`, as server-sent events."""
        if asked.echo and asked.logprobs is not None:
            raise ApiError(400, "echo: not together with logprobs", param="echo")
        service.check_ready()
        service.check_model(asked.model)
        note = note_of(request)
        note["user"] = asked.user
        prompts = await asyncio.to_thread(token_lists, asked.prompt, service.tokenizer)
        steps = merge(
            [
                _continuation(service, asked, tokens, choice)
                for tokens in prompts
                for choice in range(asked.choices)
            ]
        )
        completion = TextCompletion(service, asked, prompts, steps, note)
        if asked.stream:
            return EventStream(completion.events(), service.settings.keep_alive)
        return json_answer(await while_connected(request, completion.answer()))

    return router


def _continuation(
    service: Service, asked: CompletionRequest, tokens: list[int], choice: int
) -> AsyncGenerator[Step, None]:
    """One text after one prompt."""
    top = asked.logprobs or 0
    request = Request(
        tokens,
        max_tokens=asked.max_tokens or DEFAULT_TOKENS,
        sampling=sampling_params(asked, service.advice, choice=choice, top_logprobs=top),
        stop=asked.stops,
        priority=asked.priority,
        grammar=response_grammar(asked),
        logprobs=asked.logprobs is not None,
        ignore_end=asked.ignore_eos,
    )
    return generation(service.engine, request, PlainText(), service.metrics)
