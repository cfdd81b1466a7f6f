"""Replicas on Ray: answers, routing, failures, updates and shutdown."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tinyllm_serve.testing import Server

# The environment of the workspace has no Ray, because its wheels have 80 MB.
# `uv run --extra ray pytest apps/serve/tests/test_replicas.py` runs these.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra 'ray'")

CHAT = "/v1/chat/completions"
KEY = {"Authorization": "Bearer secret"}
PAGE = 16
RUNNING = "tinyllm:num_requests_running"


@pytest.fixture(scope="module")
def copies(endless: Path) -> Iterator[Server]:
    """A server of two replicas with endless answers, and a key."""
    name = os.path.relpath(endless)
    model = ("--model", name, "--page-size", str(PAGE), "--kv-cache-memory", "0.05")
    with Server(
        *model, "--ray", "--replicas", "2", ready=False, TINYLLM_API_KEY="secret"
    ) as server:
        server.wait_for("ready", 300.0)  # Ray alone takes ten seconds on an idle machine
        yield server


def one_replica(model: Path) -> tuple[str, ...]:
    """Return the options of a server with one replica."""
    return ("--model", str(model), "--ray", "--replicas", "1", "--kv-cache-memory", "0.05")


def chat_body(text: str, **fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def ask(server: Server, text: str, **fields: object) -> httpx.Response:
    return httpx.post(server.url + CHAT, json=chat_body(text, **fields), headers=KEY, timeout=60)


def counts(server: Server, name: str) -> dict[str, float]:
    """Return a metric of each replica."""
    page = httpx.get(f"{server.url}/metrics", headers=KEY, timeout=20).text
    return {
        sample.labels["replica"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    }


def wait_for_total(server: Server, name: str, value: float, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while sum(counts(server, name).values()) != value:
        assert time.monotonic() < deadline, counts(server, name)
        time.sleep(0.1)


def ray_processes(server: Server) -> dict[int, str]:
    """Return the names of a server's running Ray processes by process id, without zombies."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,stat=,args="],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split(maxsplit=3) for line in listed.stdout.splitlines()]
    known, found = {server.process.pid}, {}
    for _ in range(4):  # generations of processes
        for pid, parent, state, *name in rows:
            if int(parent) in known and not state.startswith("Z"):
                known.add(int(pid))
                found[int(pid)] = " ".join(name)
    return found


def replica_processes(server: Server) -> list[int]:
    return [pid for pid, name in ray_processes(server).items() if "ServeReplica" in name]


def events(lines: Iterator[str]) -> Iterator[dict[str, object]]:
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line[6:])


def test_replicas_answer_as_one_process(copies: Server, busy: Server) -> None:
    question = chat_body("what is attention?", max_tokens=12, logprobs=True, n=2)
    expected = httpx.post(busy.url + CHAT, json=question, timeout=60).json()
    answer = ask(copies, "what is attention?", max_tokens=12, logprobs=True, n=2)
    assert answer.json()["choices"] == expected["choices"]
    assert answer.json()["usage"]["completion_tokens"] == 24
    line = copies.wait_for("request", id=answer.headers["x-request-id"])
    assert (line["path"], line["status"], line["completion_tokens"]) == (CHAT, 200, 24)


def test_all_endpoints_and_errors_work(copies: Server) -> None:
    with httpx.Client(base_url=copies.url, headers=KEY, timeout=60) as client:
        assert client.get("/health").json()["state"] == "ready"
        assert client.get("/v1/models").json()["data"][0]["id"] == "endless"
        tokens = client.post("/tokenize", json={"prompt": "abc"}).json()["tokens"]
        assert client.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": "abc"}
        responses = client.post("/v1/responses", json={"input": "hi", "max_output_tokens": 3})
        assert responses.json()["status"] == "incomplete"
        embedded = client.post("/v1/embeddings", json={"input": "abc"})
        assert len(embedded.json()["data"][0]["embedding"]) == 64
        assert "<title>" in client.get("/").text
        document = client.get("/openapi.json").json()
        assert "/v1/chat/completions" in document["paths"]
        assert document["components"]["securitySchemes"]
        wrong = client.post(CHAT, json=chat_body("hi", max_toknes=3))
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "max_toknes")
        assert client.get("/nothing").status_code == 404
        assert client.put(CHAT, json={}).status_code == 405
        long = client.post(CHAT, content=b"x" * 10_000_001)
        assert (long.status_code, long.json()["error"]["code"]) == (413, None)
        refused = client.post("/v1/messages", json={})
        assert refused.json()["request_id"] == refused.headers["request-id"]
    for method, path in (("POST", "/docs"), ("GET", "/page/x/y"), ("PUT", "/health")):
        answer = httpx.request(method, copies.url + path, content=b"x" * 9_000_000)
        assert answer.status_code == 401, path
    assert httpx.get(f"{copies.url}/docs").status_code == 200
    without = httpx.post(copies.url + CHAT, json=chat_body("hi"))
    assert without.json()["error"]["code"] == "invalid_api_key"


def test_the_model_has_the_name_that_the_operator_gave(copies: Server, endless: Path) -> None:
    name = os.path.relpath(endless)
    (listed,) = httpx.get(f"{copies.url}/v1/models", headers=KEY).json()["data"]
    assert (listed["id"], listed["root"]) == ("endless", name)
    assert ask(copies, "hi", model=name, max_tokens=1).status_code == 200
    assert ask(copies, "hi", model=str(endless)).json()["error"]["code"] == "model_not_found"


def test_conversations_stay_with_their_cached_prefix(copies: Server) -> None:
    before = counts(copies, "tinyllm:prompt_tokens_total")
    cached = []
    for place in range(6):
        text = f"{place:04d}" * 4 * PAGE  # shares no page with other conversations
        for more in ("", "a", "b"):
            usage = ask(copies, text + more, max_tokens=1).json()["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert all(count == 0 for count in cached[::3])
    assert all(count > 2 * PAGE for again in (1, 2) for count in cached[again::3])
    after = counts(copies, "tinyllm:prompt_tokens_total")
    shares = [after[replica] - before[replica] for replica in after]
    assert max(shares) == pytest.approx(sum(shares) / 2, rel=0.1)  # three conversations each


def test_a_disconnect_frees_the_pages(copies: Server) -> None:
    body = chat_body("go on", stream=True, max_tokens=20_000)
    with (
        httpx.Client(timeout=60) as client,
        client.stream("POST", copies.url + CHAT, json=body, headers=KEY) as stream,
    ):
        lines = stream.iter_lines()
        next(events(lines))
        wait_for_total(copies, RUNNING, 1)
    wait_for_total(copies, RUNNING, 0)
    wait_for_total(copies, "tinyllm:kv_cache_pages_used", 0)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
def test_no_process_keeps_a_body_until_its_answer_has_ended(copies: Server) -> None:
    image = {"type": "image_url", "image_url": {"url": "a" * 8_000_000}}
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    turns = [{"role": "assistant", "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "c", "content": [image]}
    body = chat_body("go on", max_tokens=20_000)
    body["messages"] = [{"role": "user", "content": "go on"}, *turns, result]

    def megabytes() -> float:
        pids = [copies.process.pid, *replica_processes(copies)]
        pages = "".join(Path(f"/proc/{pid}/status").read_text() for pid in pids)
        return sum(map(int, re.findall(r"^RssAnon:\s*(\d+)", pages, re.MULTILINE))) / 1000

    async def growth() -> float:
        before = megabytes()
        async with httpx.AsyncClient(timeout=120, headers=KEY) as client:
            posts = (client.post(copies.url + CHAT, json=body) for _ in range(6))
            tasks = [*map(asyncio.create_task, posts)]
            await asyncio.to_thread(wait_for_total, copies, RUNNING, 6)
            after = megabytes()
            for task in tasks:
                task.cancel()
        return after - before

    # 12 to 18. 119 to 145 if the front and the replicas keep the bodies.
    assert asyncio.run(growth()) < 60


def test_a_killed_replica_ends_only_its_streams_and_is_replaced(copies: Server) -> None:
    def last_event(text: str) -> dict[str, object]:
        body = chat_body(text, stream=True, max_tokens=2000)
        with (
            httpx.Client(timeout=60) as client,
            client.stream("POST", copies.url + CHAT, json=body, headers=KEY) as stream,
        ):
            *_, last = events(stream.iter_lines())
        return last

    replicas = set(replica_processes(copies))
    assert len(replicas) == 2
    with ThreadPoolExecutor(4) as threads:
        streams = [threads.submit(last_event, f"story {place}") for place in range(2)]
        wait_for_total(copies, RUNNING, 2)
        wholes = [threads.submit(ask, copies, name, max_tokens=2000) for name in ("one", "two")]
        wait_for_total(copies, RUNNING, 4)
        os.kill(min(replicas), signal.SIGKILL)
        after = [ask(copies, f"meanwhile {place}", max_tokens=2) for place in range(4)]
        lasts = [stream.result() for stream in streams]
        answers = sorted((each.result() for each in wholes), key=lambda each: each.status_code)
    assert [answer.status_code for answer in after] == [200] * 4
    lost = [last["error"] for last in lasts if "error" in last]
    assert [error["code"] for error in lost] == ["replica_lost"]
    assert sum("error" not in last for last in lasts) == 1
    assert [answer.status_code for answer in answers] == [200, 503]
    assert answers[1].json()["error"]["code"] == "replica_lost"
    assert answers[1].headers["retry-after"] == "5"
    deadline = time.monotonic() + 60
    while min(len(counts(copies, RUNNING)), len(replica_processes(copies))) < 2:
        assert time.monotonic() < deadline, ray_processes(copies)
        time.sleep(0.2)


def test_requests_are_refused_while_no_replica_can_start(copies: Server, endless: Path) -> None:
    def wait_until_ready(status: int) -> None:
        deadline = time.monotonic() + 90
        while httpx.get(f"{copies.url}/ready", timeout=20).status_code != status:
            assert time.monotonic() < deadline, ray_processes(copies)
            time.sleep(0.1)

    away = endless.rename(endless.with_name("away"))
    try:
        for replica in replica_processes(copies):
            os.kill(replica, signal.SIGKILL)
        with ThreadPoolExecutor(4) as threads:
            waiting = [threads.submit(ask, copies, "hi", max_tokens=4) for _ in range(4)]
            wait_until_ready(503)
            refused = ask(copies, "hi", max_tokens=4)
    finally:
        away.rename(endless)
    assert refused.status_code == 503
    assert "no replica runs" in refused.json()["error"]["message"]
    assert {each.result().status_code for each in waiting} == {503}
    wait_until_ready(200)
    assert ask(copies, "hi", max_tokens=4).status_code == 200
    deadline = time.monotonic() + 60
    while len(replica_processes(copies)) < 2:
        assert time.monotonic() < deadline, ray_processes(copies)
        time.sleep(0.2)


def test_an_update_refuses_no_request(copies: Server, endless: Path) -> None:
    command = [sys.executable, "-m", "tinyllm_serve", "--ray", "--update", "--replicas", "2"]
    options = [
        "--model",
        str(endless),
        "--served-model-name",
        "second",
        "--kv-cache-memory",
        "0.05",
    ]

    async def ask_until(update: subprocess.Popen[bytes]) -> list[tuple[int, str]]:
        answers = []
        async with httpx.AsyncClient(headers=KEY, timeout=60) as client:
            while update.poll() is None:
                answer = await client.post(copies.url + CHAT, json=chat_body("hi", max_tokens=4))
                answers.append((answer.status_code, answer.json().get("model", "")))
                await asyncio.sleep(0.05)
            answer = await client.post(copies.url + CHAT, json=chat_body("hi", max_tokens=4))
        return [*answers, (answer.status_code, answer.json()["model"])]

    with subprocess.Popen([*command, *options]) as update:
        answers = asyncio.run(ask_until(update))
    assert update.returncode == 0
    assert {status for status, _ in answers} == {200}
    assert answers[0] == (200, "endless")
    assert answers[-1] == (200, "second")


def test_a_lost_replica_is_replaced_after_an_update_that_failed(
    copies: Server, endless: Path
) -> None:
    command = [sys.executable, "-m", "tinyllm_serve", "--ray", "--update", "--replicas", "2"]
    options = ["--model", str(endless), "--max-model-len", "9999999"]
    failed = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "--max-model-len: expected at most" in failed.stderr
    assert ask(copies, "hi", max_tokens=4).status_code == 200
    lost = replica_processes(copies)[0]
    os.kill(lost, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while lost in (now := replica_processes(copies)) or len(now) < 2:
        assert time.monotonic() < deadline, ray_processes(copies)
        time.sleep(0.2)


def test_sigterm_finishes_running_requests_and_leaves_no_process(copies: Server) -> None:
    started = ray_processes(copies)
    assert len(started) > 4
    body = chat_body("go on", stream=True, max_tokens=600)
    with (
        httpx.Client(timeout=60) as client,
        client.stream("POST", copies.url + CHAT, json=body, headers=KEY) as stream,
    ):
        lines = stream.iter_lines()
        next(events(lines))
        copies.process.send_signal(signal.SIGTERM)
        copies.wait_for("draining")
        assert ask(copies, "too late").status_code == 503
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    assert copies.wait() == 0
    deadline = time.monotonic() + 10
    while left := [pid for pid in started if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, {pid: started[pid] for pid in left}
        time.sleep(0.1)


def test_a_stream_beyond_the_grace_period_is_told_of_the_end(endless: Path) -> None:
    with Server(*one_replica(endless), "--timeout-graceful-shutdown", "1", ready=False) as server:
        server.wait_for("ready", 300.0)
        body = chat_body("go on", stream=True, max_tokens=50_000)
        with httpx.stream("POST", server.url + CHAT, json=body, timeout=60) as stream:
            lines = stream.iter_lines()
            next(events(lines))
            server.process.send_signal(signal.SIGTERM)
            *_, error, _, end, _ = lines
        assert "the server is shutting down" in error
        assert end == "data: [DONE]"
        assert server.wait() == 0
        assert not any("Started a local Ray instance" in str(entry) for entry in server.log())


def test_the_server_ends_if_ray_does(endless: Path) -> None:
    with Server(*one_replica(endless), ready=False) as server:
        server.wait_for("ready", 300.0)
        (raylet,) = (pid for pid, name in ray_processes(server).items() if "raylet/raylet" in name)
        os.kill(raylet, signal.SIGKILL)
        assert server.process.wait(90) == 1
