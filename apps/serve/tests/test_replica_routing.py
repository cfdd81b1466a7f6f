"""Routing to replicas, and their options and metrics, without Ray."""

import asyncio
import json
import runpy
import sys
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message, Receive, Scope, Send
from tinyllm_cli.messages import USAGE, UsageError
from tinyllm_serve import cli, replicas
from tinyllm_serve.application import make_replica_endpoints
from tinyllm_serve.metrics import labelled_metrics
from tinyllm_serve.replicas.exchange import MAX_UNREAD, ReplicaRequest, exchange
from tinyllm_serve.replicas.local_settings import local_settings
from tinyllm_serve.replicas.prefix_map import PrefixMap, prefix_hashes
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings

STRIDE = 16


def chat(*turns: str, **fields: object) -> bytes:
    """Return the body of a conversation."""
    messages = [
        {"role": "assistant" if place % 2 else "user", "content": turn}
        for place, turn in enumerate(turns)
    ]
    return json.dumps({"messages": messages, **fields}).encode()


def in_common(first: tuple[bytes, ...], second: tuple[bytes, ...]) -> int:
    return sum(one == other for one, other in zip(first, second, strict=False))


@given(st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=5), st.text(max_size=60))
def test_a_longer_conversation_keeps_its_prefix_hashes(turns: list[str], more: str) -> None:
    names = prefix_hashes(chat(*turns), STRIDE)
    later = prefix_hashes(chat(*turns, more), STRIDE)
    # The last hash may cover the end of the list, which moves in a longer conversation.
    assert in_common(names, later) >= len(names) - 1


@given(st.text(min_size=100, max_size=300), st.integers(0, 99), st.characters(codec="ascii"))
def test_common_hashes_are_common_strides(text: str, place: int, other: str) -> None:
    changed = text[:place] + other + text[place + 1 :]
    one, two = (json.dumps([each], ensure_ascii=False) for each in (text, changed))
    common = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), None)
    first, second = (
        prefix_hashes(json.dumps({"prompt": each}).encode(), STRIDE) for each in (text, changed)
    )
    if common is not None:
        assert in_common(first, second) == common // STRIDE


def test_tools_change_the_hashes_and_sampling_does_not() -> None:
    question = "what is attention, and what is it for?"
    plain = prefix_hashes(chat(question), STRIDE)
    assert len(plain) > 1
    assert prefix_hashes(chat(question, temperature=1, stream=True), STRIDE) == plain
    tools = [{"type": "function", "function": {"name": "weather"}}]
    assert in_common(prefix_hashes(chat(question, tools=tools), STRIDE), plain) == 0


def test_a_billing_header_does_not_change_the_hashes() -> None:
    def of(header: str, system: str = "Be brief, and answer in one sentence.") -> tuple[bytes, ...]:
        blocks = [{"type": "text", "text": text} for text in (header, system)]
        return prefix_hashes(chat("why?", system=blocks), STRIDE)

    first, second = (of(f"x-anthropic-billing-header: cch={each};") for each in "ab")
    assert first == second
    assert of("a") != of("b")
    assert first != of("x-anthropic-billing-header", "Be long, and answer in many sentences.")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[1]", b'{"a": 1}', b"\xff", b"[" * 100_000),
        b'{"messages": [%s]}' % b",".join([b"{}"] * 100_000),
    ],
)
def test_other_bodies_have_no_hashes(body: bytes) -> None:
    assert prefix_hashes(body, STRIDE) == ()


def test_the_longest_known_prefix_decides_unless_its_replica_is_loaded() -> None:
    places = PrefixMap(slack=3)
    a, b, c = b"a", b"b", b"c"
    places.record([a, b], "first")
    places.record([a, c], "second")
    idle = {"first": 0, "second": 0, "third": 0}
    assert places.rank([a, b, b"new"], idle)[0] == "first"
    assert places.rank([a, c], idle)[0] == "second"
    assert places.rank([a, b], idle | {"first": 2})[0] == "first"
    assert (
        places.rank([a, b], idle | {"first": 3})[0] == "third"
    )  # the replica that was chosen least recently
    assert sorted(places.rank([a, b], idle)) == ["first", "second", "third"]
    places.forget("first")
    assert places.rank([a, b], {"second": 1, "third": 0})[0] == "second"


@dataclass(frozen=True)
class Identity:
    """The identity of a replica."""

    unique_id: str


@dataclass
class Pending:
    """A request that Ray routes."""

    args: list[object]
    future: asyncio.Future[object] = field(default_factory=asyncio.Future)
    metadata: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(internal_request_id="one")
    )
    routing_context: SimpleNamespace = field(default_factory=SimpleNamespace)


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A router without requests, on stand-ins for Ray's classes."""

    class Base:
        pass

    ray = {"RequestRouter": Base, "PendingRequest": Pending, "ReplicaID": Identity}
    interface = ModuleType("ray.serve.request_router")
    vars(interface).update(ray, RunningReplica=object)
    for name in ("ray", "ray.serve"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    path = Path(replicas.__file__).with_name("prefix_router.py")
    made = runpy.run_path(str(path))["PrefixRouter"]()
    made.initialize_state(slack=8)
    return made


@pytest.mark.parametrize("end", ["sent", "lost", "cancelled", "failed"])
def test_a_request_that_is_no_longer_pending_is_not_counted(end: str, router: Any) -> None:
    async def test() -> None:
        candidates = [SimpleNamespace(replica_id=Identity(name)) for name in ("first", "second")]
        request = Pending([ReplicaRequest("POST", "/", b"", (), b"", prefixes=(b"a",))])
        for _ in range(2):  # Ray asks again while all replicas are full
            await router.choose_replicas(candidates, request)
            assert len(router._chosen) == 1
        if end == "cancelled":
            request.future.cancel()
        elif end == "failed":
            request.future.set_exception(ValueError("no"))
            request.future.exception()
        else:
            request.future.set_result(candidates[0])
        await asyncio.sleep(0)
        assert not router._chosen
        if end == "lost":  # Ray sends a request again after the loss of its replica
            request.future = asyncio.Future()
            await router.choose_replicas(candidates, request)
            assert len(router._chosen) == 1
            request.future.cancel()
            await asyncio.sleep(0)
            assert not router._chosen

    asyncio.run(test())


class Ready(Service):
    """A service without a model, for requests that are refused."""

    def __init__(self) -> None:
        super().__init__(Settings(max_body_memory=1_000_000))
        self._state = "ready"

    @property
    def context_length(self) -> int:
        return 100


def answers_of(*requests: ReplicaRequest) -> list[tuple[int, Any]]:
    """Return the statuses and the JSON of a replica's answers to simultaneous requests."""
    app = make_replica_endpoints(Ready())

    async def answer(request: ReplicaRequest) -> tuple[int, Any]:
        async with aclosing(exchange(app, request.scope({}), request)) as messages:
            start, *bodies = [message async for message in messages]
        return start["status"], json.loads(b"".join(each.get("body", b"") for each in bodies))

    async def answer_all() -> list[tuple[int, Any]]:
        return await asyncio.gather(*map(answer, requests))

    return asyncio.run(answer_all())


JSON = ((b"content-type", b"application/json"),)


def test_a_replica_bounds_the_memory_of_all_bodies() -> None:
    body = b"[" + b" " * 900_000
    requests = (ReplicaRequest("POST", "/v1/completions", b"", JSON, body) for _ in range(3))
    codes = [body["error"]["code"] for _status, body in answers_of(*requests)]
    assert sorted(codes) == ["json_invalid", "unavailable", "unavailable"]


def test_errors_of_a_replica_have_the_id_of_the_request() -> None:
    request = ReplicaRequest("POST", "/v1/messages", b"", JSON, b"[", request_id="req-1")
    ((status, body),) = answers_of(request)
    assert (status, body["request_id"]) == (400, "req-1")


def test_without_slack_prefixes_do_not_matter() -> None:
    places = PrefixMap(slack=0)
    taken = []
    for _ in range(6):
        replica = places.rank([b"a"], {"first": 0, "second": 0})[0]
        places.record([b"a"], replica)
        taken.append(replica)
    assert taken == ["first", "second"] * 3


def test_simultaneous_requests_are_balanced() -> None:
    places = PrefixMap(slack=8)
    firsts = [places.rank([], {"first": 1, "second": 1})[0] for _ in range(4)]
    assert firsts == ["first", "second"] * 2


def test_the_least_recently_used_prefixes_are_forgotten() -> None:
    places = PrefixMap(slack=8, capacity=2)
    places.record([b"a", b"b"], "first")
    places.record([b"c"], "second")
    busy = {"first": 1, "second": 0}
    assert places.rank([b"a"], busy)[0] == "first"  # the shorter prefix is kept longer
    assert places.rank([b"b"], busy)[0] == "second"


@pytest.mark.parametrize(
    ("text", "expected"), [("2", (2, 2)), ("1-4", (1, 4)), ("3-3", (3, 3)), ("256", (256, 256))]
)
def test_numbers_of_replicas(text: str, expected: tuple[int, int]) -> None:
    assert Settings(ray=True, replicas=text).replica_range == expected


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "4-1", "two", "1-", "257", "1-2-3", "\u00b2", "1e2"]
)
def test_invalid_numbers_of_replicas(text: str) -> None:
    with pytest.raises(UsageError, match="--replicas: expected from 1 to 256, or a range"):
        Settings(ray=True, replicas=text)


def test_metrics_of_replicas_are_labelled() -> None:
    def page(running: int) -> bytes:
        registry = CollectorRegistry()
        Gauge("tinyllm:num_requests_running", "Running.", registry=registry).set(running)
        Counter("tinyllm:http_requests", "Requests.", registry=registry).inc(running)
        Histogram("tinyllm:seconds", "Times.", buckets=[1], registry=registry).observe(running)
        return generate_latest(registry)

    merged = labelled_metrics(page(5), {"a": page(1), "b": page(2)}).decode()
    samples = {
        (sample.name, sample.labels.get("replica")): sample.value
        for family in text_string_to_metric_families(merged)
        for sample in family.samples
        if "le" not in sample.labels
    }
    assert samples["tinyllm:num_requests_running", "a"] == 1
    assert samples["tinyllm:num_requests_running", "b"] == 2
    assert samples["tinyllm:seconds_sum", "b"] == 2
    assert samples["tinyllm:http_requests_total", None] == 5
    assert ("tinyllm:http_requests_total", "a") not in samples
    assert ("tinyllm:num_requests_running", None) not in samples
    assert merged.count("# TYPE tinyllm:num_requests_running gauge") == 1


def test_an_exchange_streams_messages_and_ends_with_its_reader() -> None:
    ended: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"question"
        try:
            for number in range(3):
                await send({"type": "http.response.body", "body": b"%d" % number})
            await receive()
        finally:
            ended.append(scope["path"])

    async def read() -> list[Message]:
        request = ReplicaRequest("GET", "/there", b"", (), b"question")
        async with aclosing(exchange(app, request.scope({}), request)) as messages:
            return [await anext(messages) for _ in range(3)]

    assert [message["body"] for message in asyncio.run(read())] == [b"0", b"1", b"2"]
    assert ended == ["/there"]


def test_an_exchange_waits_for_a_slow_reader() -> None:
    sent: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for number in range(100):
            await send({"type": "http.response.body", "body": b"%d" % number})
            sent.append(number)

    async def read() -> tuple[int, int]:
        async with aclosing(
            exchange(app, {"type": "http"}, ReplicaRequest("GET", "/", b"", (), b""))
        ) as messages:
            await anext(messages)
            await asyncio.sleep(0.01)
            early = len(sent)
            return early, 1 + len([message async for message in messages])

    assert asyncio.run(read()) == (MAX_UNREAD + 1, 100)


def test_an_error_of_the_application_follows_its_messages() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"first"})
        raise ValueError("then this")

    async def read() -> Message:
        async with aclosing(
            exchange(app, {"type": "http"}, ReplicaRequest("GET", "/", b"", (), b""))
        ) as messages:
            first = await anext(messages)
            with pytest.raises(ValueError, match="then this"):
                await anext(messages)
            return first

    assert asyncio.run(read())["body"] == b"first"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--ray"], "--ray: expected Ray to be installed: run 'uv run --extra ray"),
        (["--replicas", "2"], "expected --ray with them"),
        (["--affinity", "2"], "expected --ray with them"),
        (["--update"], "expected --ray with them"),
    ],
)
def test_options_that_need_ray(
    options: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["serve", *options])
    monkeypatch.setitem(sys.modules, "ray", None)  # also where Ray is installed
    assert cli.main() == USAGE
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings", [Settings(prefix_cache_path=Path("prefixes")), Settings(split="layers")]
)
def test_options_of_a_single_engine_are_refused(settings: Settings) -> None:
    with pytest.raises(UsageError, match=r"^--(prefix-cache-path|split): expected none"):
        local_settings(settings)


def test_a_prompt_cache_key_prefers_a_replica() -> None:
    routes = PrefixMap(slack=4)
    load = {"a": 0, "b": 0}
    first = prefix_hashes(
        json.dumps({"prompt": "a" * 99, "prompt_cache_key": "k"}).encode(), STRIDE
    )
    routes.record(first, "b")
    other = prefix_hashes(
        json.dumps({"prompt": "b" * 99, "prompt_cache_key": "k"}).encode(), STRIDE
    )
    assert in_common(first, other) == 1
    assert [routes.rank(other, load)[0] for _ in range(3)] == ["b"] * 3
    assert prefix_hashes(chat("", prompt_cache_key="\ud800"), STRIDE)


def test_a_nested_body_has_no_prefix_hashes() -> None:
    for depth in range(900, 1000):
        assert (
            prefix_hashes(b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}", STRIDE) is not None
        )
