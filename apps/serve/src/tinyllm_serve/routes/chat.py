"""POST /v1/chat/completions."""

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.requests import Request

from tinyllm_serve.chat_completion import ChatCompletion
from tinyllm_serve.chat_steps import chat_steps
from tinyllm_serve.disconnect import while_connected
from tinyllm_serve.event_stream import OR_EVENTS, EventStream
from tinyllm_serve.json_answer import json_answer
from tinyllm_serve.request_note import note_of
from tinyllm_serve.schemas.chat_answer import ChatAnswer
from tinyllm_serve.schemas.chat_request import ChatRequest
from tinyllm_serve.service import Service


def chat_router(service: Service) -> APIRouter:
    """The endpoint, for a service."""
    router = APIRouter(tags=["chat"])

    @router.post("/v1/chat/completions", response_model=ChatAnswer, responses=OR_EVENTS)
    async def chat_completions(asked: ChatRequest, request: Request) -> Response:
        """Go on with a conversation; with `stream`, as server-sent events."""
        note = note_of(request)
        note["user"] = asked.asker
        steps = await chat_steps(service, asked)
        completion = ChatCompletion(service, asked, steps, note)
        if asked.stream:
            return EventStream(completion.events(), service.settings.keep_alive)
        return json_answer(await while_connected(request, completion.answer()))

    return router
