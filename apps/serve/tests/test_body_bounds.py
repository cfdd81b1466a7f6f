"""Bodies that are large in structure are refused before they cost time and memory."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tinyllm_serve.http.json_structure import MAX_DEPTH, JsonBounds, StructureError
from tinyllm_serve.protocol.base import MAX_ITEMS
from tinyllm_serve.protocol.messages import AssistantMessage
from tinyllm_serve.protocol.responses import ReasoningItem, ReasoningText, ResponseRequest
from tinyllm_serve.routes.responses_input import as_chat
from tinyllm_serve.testing import Server

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
HELLO = [{"role": "user", "content": "hello"}]
BODY = 9_900_000
BOUNDS = JsonBounds(values=100, containers=80, strings=60)


def filled(head: str, item: str, tail: str) -> str:
    """Return a JSON text of `BODY` bytes that repeats an item."""
    return head + ",".join([item] * ((BODY - len(head + tail)) // (len(item) + 1))) + tail


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@contextmanager
def watched(server: Server) -> Iterator[list[float]]:
    """Collect the seconds that each of many requests to /health took."""
    seconds, done = [0.0], threading.Event()

    def poll() -> None:
        while not done.wait(0.01):
            start = time.perf_counter()
            httpx.get(f"{server.url}/health", timeout=120)
            seconds.append(time.perf_counter() - start)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield seconds
    finally:
        done.set()
        thread.join()


def megabytes(server: Server, kind: str) -> float:
    """Return the memory of a server now (VmRSS), or its peak (VmHWM)."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(kind)]
    return int(line.split()[1]) / 1000


LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")


# tests/attack/test_requests.py sends further lists of 10 MB.
@pytest.mark.parametrize(
    ("path", "head", "item", "tail"),
    [
        (CHAT, '{"messages":[],"modalities":[', "0", "]}"),
        (CHAT, '{"messages":[],"metadata":{', '"a":1', "}}"),
        (CHAT, '{"messages":[{"role":"assistant","tool_calls":[', "{}", "]}]}"),
        (RESPONSES, '{"input":"a","include":[', "0", "]}"),
        ("/tokenize", '{"messages":[', "{}", "]}"),
        ("/v1/embeddings", '{"input":[', '"a",1', "]}"),
        ("/v1/completions", '{"prompt":[[', "-1", "]]}"),
    ],
)
@LINUX
def test_10_mb_of_small_values_stall_no_other_request(
    pico: Server, path: str, head: str, item: str, tail: str
) -> None:
    body = filled(head, item, tail)
    before = megabytes(pico, "VmHWM")
    with watched(pico) as seconds:
        answer = httpx.post(
            f"{pico.url}{path}",
            content=body,
            headers={"Content-Type": "application/json"},
            timeout=120,
        )
    assert answer.status_code == 400
    # 0.3 s at most on an idle machine. Without the bounds: 7 to 73 s, and up to 12 GB.
    assert max(seconds) < 2
    assert megabytes(pico, "VmHWM") - before < 100


@LINUX
def test_no_body_is_kept_until_its_answer_has_ended(busy: Server) -> None:
    image = {"type": "image_url", "image_url": {"url": "a" * 8_000_000}}
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    turns = [{"role": "assistant", "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "c", "content": [image]}
    body = {"messages": [*HELLO, *turns, result]}

    async def growth() -> float:
        before = megabytes(busy, "VmRSS")
        async with httpx.AsyncClient(timeout=120) as client:
            posts = (client.post(f"{busy.url}{CHAT}", json=body) for _ in range(6))
            tasks = [*map(asyncio.create_task, posts)]
            await asyncio.to_thread(busy.wait_until, "num_requests_waiting", 4.0, 60.0)
            after = megabytes(busy, "VmRSS")
            for task in tasks:
                task.cancel()
        return after - before

    # 8 to 20. 100 if each body and its text are kept, 60 if the chunks of bodies leave gaps.
    assert asyncio.run(growth()) < 50


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": HELLO, "chat_template_kwargs": {"a": nested(MAX_DEPTH)}}),
        (CHAT, {"messages": HELLO, "metadata": {"a": nested(900)}}),
        (
            CHAT,
            {
                "messages": HELLO,
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"a": nested(900)}},
                    }
                ],
            },
        ),
        ("/detokenize", {"tokens": nested(300)}),
        (RESPONSES, {"input": "a", "tools": [{"a": nested(MAX_DEPTH)}]}),
    ],
)
def test_deep_bodies_are_refused(pico: Server, path: str, fields: dict[str, object]) -> None:
    body = str(fields).replace("'", '"')
    answer = httpx.post(
        f"{pico.url}{path}", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert f"at most {MAX_DEPTH} levels" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "arguments", ["[" * 900 + "]" * 900, "{" * 70, "[" + "{}," * 20_000 + "0]"]
)
def test_deep_or_wide_arguments_of_past_calls_are_refused(pico: Server, arguments: str) -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": arguments}}
    messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}]
    answer = httpx.post(f"{pico.url}{CHAT}", json={"messages": messages, "max_tokens": 1})
    assert answer.status_code == 400
    assert "expected at most" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 65,
        b'{"a":' * 65,
        b'["' + b'\\"' * 10 + b'",' + b"[" * 64,
        b"[" + b"[]," * 80,
        b"[" + b"1," * 101,
        b"[" + b'"",' * 61,
    ],
)
def test_structure_beyond_a_bound_is_an_error(text: bytes) -> None:
    with pytest.raises(StructureError, match="expected at most"):
        BOUNDS.check(text)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 64 + b"]" * 64,
        b'["' + b"[[{,}," * 1000 + b'"]',
        b'{"a": "' + b'\\"[,' * 1000 + b'", "b": "\\\\"}',
        b'{"never ended": "' + b"[,\\" * 1000,
        b"]" * 1000,
        b"",
    ],
)
def test_brackets_and_commas_in_strings_do_not_count(text: bytes) -> None:
    BOUNDS.check(text)


def test_the_time_of_a_check_is_linear() -> None:
    start = time.perf_counter()
    JsonBounds(values=1000).check(b'[["' + b'\\"' * 2_000_000 + b"[[[" * 100)
    assert time.perf_counter() - start < 5  # 0.1 s on an idle machine


def test_the_time_to_join_the_items_of_an_answer_is_linear() -> None:
    text = ReasoningText(type="reasoning_text", text="x" * (BODY // MAX_ITEMS))
    item = ReasoningItem(type="reasoning", content=[text])
    start = time.process_time()
    (message,) = as_chat(ResponseRequest(input=[item] * MAX_ITEMS)).messages
    assert time.process_time() - start < 2
    assert isinstance(message, AssistantMessage)
    assert len(message.reasoning_content or "") > 0.99 * BODY
