"""POST /v1/responses."""

from typing import Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.requests import Request

from tinyllm_serve.chat_steps import chat_steps
from tinyllm_serve.disconnect import while_connected
from tinyllm_serve.event_stream import OR_EVENTS, EventStream
from tinyllm_serve.field_names import RESPONSES, named
from tinyllm_serve.model_response import ModelResponse
from tinyllm_serve.request_note import note_of
from tinyllm_serve.response_conversation import as_chat
from tinyllm_serve.schemas.response_request import ResponseRequest
from tinyllm_serve.service import Service


class ResponseBody(BaseModel):
    """The fields that a client needs; the others say again what was asked."""

    id: str
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[dict[str, object]]
    usage: dict[str, object]
    object: Literal["response"]


def responses_router(service: Service) -> APIRouter:
    """The endpoint, for a service."""
    router = APIRouter(tags=["responses"])

    @router.post("/v1/responses", response_model=ResponseBody, responses=OR_EVENTS)
    async def responses(asked: ResponseRequest, request: Request) -> Response:
        """Go on with a conversation; with `stream`, as server-sent events with names."""
        note = note_of(request)
        note["user"] = asked.asker
        with named(RESPONSES):
            steps = await chat_steps(service, as_chat(asked))
        response = ModelResponse(service, asked, steps, note)
        if asked.stream:
            return EventStream(response.events(), service.settings.keep_alive, named=True)
        return JSONResponse(await while_connected(request, response.answer()))

    return router
