"""Bodies that take more than a few milliseconds are parsed outside of the event loop."""

import asyncio
import json
import threading
from types import SimpleNamespace

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel, field_validator
from tinyllm_serve.http.body import SHORT_BODY, TINY_BODY, BodyRoute, process_body

parsed_in: list[str] = []


class Text(BaseModel):
    text: str

    @field_validator("text")
    @classmethod
    def _note_thread(cls, text: str) -> str:
        parsed_in.append(threading.current_thread().name)
        return text


router = APIRouter(route_class=BodyRoute)


@router.post("/text")
async def text(body: Text) -> str:
    parsed_in.append(threading.current_thread().name)
    return body.text[:1]


@pytest.mark.parametrize(
    ("length", "name"),
    [
        (TINY_BODY + 1, "short-body"),
        (SHORT_BODY, "short-body"),
        (SHORT_BODY + 1, "long-body"),
        (1_000_000, "long-body"),
    ],
)
def test_the_event_loop_parses_only_tiny_bodies(length: int, name: str) -> None:
    app = FastAPI()
    app.include_router(router)
    app.state.served = SimpleNamespace(check_ready=lambda: None, context_length=0)
    parsed_in.clear()
    with TestClient(app, headers={"Content-Type": "application/json"}) as client:
        frame = len(json.dumps({"text": ""}))
        for size in (TINY_BODY, length):
            answer = client.post("/text", content=json.dumps({"text": "a" * (size - frame)}))
            assert answer.json() == "a"
    loop, loop_again, thread, _ = parsed_in
    assert loop == loop_again
    assert thread.startswith(name)


def test_short_bodies_do_not_wait_for_long_ones() -> None:
    waiting = threading.Event()

    def wait(_body: bytearray) -> bool:
        return waiting.wait(20)

    async def both() -> None:
        long = asyncio.create_task(process_body(wait, bytearray(SHORT_BODY + 1)))
        async with asyncio.timeout(10):
            assert await process_body(len, bytearray(SHORT_BODY)) == SHORT_BODY
        waiting.set()
        assert await long

    asyncio.run(both())
