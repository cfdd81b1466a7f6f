"""A client that disconnects ends the work on its request, or prevents it."""

import asyncio
from types import SimpleNamespace

from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from starlette.types import Message, Scope
from tinyllm_serve.application import add_error_handlers
from tinyllm_serve.http.body import BodyRoute


class Body(BaseModel):
    """A request body."""

    text: str


async def events_of_a_request(disconnect: asyncio.Event) -> list[str]:
    """Send a request whose client disconnects when `disconnect` is set."""
    events: list[str] = []
    router = APIRouter(route_class=BodyRoute)

    @router.post("/")
    async def endpoint(body: Body) -> None:
        events.append(body.text)
        disconnect.set()
        try:
            await asyncio.Event().wait()
        finally:
            events.append("ended")

    app = FastAPI()
    app.include_router(router)
    add_error_handlers(app)
    app.state.served = SimpleNamespace(check_ready=lambda: None, context_length=100)
    body: list[Message] = [{"type": "http.request", "body": b'{"text": "begun"}'}]

    async def receive() -> Message:
        if body:
            return body.pop()
        await disconnect.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            events.append(str(message["status"]))

    headers = [(b"content-type", b"application/json")]
    scope: Scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    scope |= {"query_string": b"", "state": {"log_fields": {}, "request_id": "1"}}
    await asyncio.wait_for(app(scope, receive, send), 10)
    return events


def test_a_disconnect_cancels_the_endpoint() -> None:
    async def test() -> list[str]:
        return await events_of_a_request(asyncio.Event())

    assert asyncio.run(test()) == ["begun", "ended", "499"]


def test_an_endpoint_is_not_called_for_a_client_that_has_disconnected() -> None:
    async def test() -> list[str]:
        disconnect = asyncio.Event()
        disconnect.set()
        return await events_of_a_request(disconnect)

    assert asyncio.run(test()) == ["499"]
