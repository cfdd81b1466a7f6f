"""Several processes that share the model: rank 0 serves, and all end together."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import mlx.core as mx
import pytest
from tinyllm_cli.messages import UsageError
from tinyllm_kernels import BackendChoice
from tinyllm_qwen import generate, load
from tinyllm_qwen.testing import hybrid_checkpoint
from tinyllm_serve.ranks.group import check_alone, joined
from tinyllm_serve.settings import Settings
from tinyllm_serve.testing import Server

pytestmark = pytest.mark.exhaustive

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
SHARED = "the kv cache keeps what attention has computed. " * 4
QUESTIONS = ["what does rmsnorm do?", "why?", SHARED + "what is rope?", SHARED + "and swiglu?"]


@dataclass
class Pair:
    """Two ranks: the server and its worker."""

    server: Server
    worker: subprocess.Popen[str]

    def worker_log(self) -> str:
        """Wait for the end of the worker, and return its log."""
        return self.worker.communicate(timeout=20)[1]


Start = Callable[..., Pair]


@contextmanager
def pair(folder: Path, *options: str) -> Iterator[Pair]:
    """Start `serve` as two ranks on the loopback address."""
    with ExitStack() as stack:
        with ExitStack() as sockets:
            held = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in "01"]
            hosts = [[f"127.0.0.1:{each.getsockname()[1]}"] for each in held]
        path = folder / "hosts.json"
        path.write_text(json.dumps(hosts))
        environ = {"MLX_HOSTFILE": str(path), "TINYLLM_NUM_THREADS": "1"}
        worker = subprocess.Popen(
            [sys.executable, "-m", "tinyllm_serve", *options],
            env={**os.environ, "HF_HUB_OFFLINE": "1", **environ, "MLX_RANK": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.callback(worker.communicate)
        stack.callback(worker.kill)
        server = stack.enter_context(Server(*options, ready=True, MLX_RANK="0", **environ))
        yield Pair(server, worker)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start pairs of ranks that end with the test."""
    with ExitStack() as stack:
        yield lambda *options: stack.enter_context(pair(tmp_path, *options))


@pytest.fixture(scope="module", params=["heads", "2,4"])
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """pico on two ranks in float32. The first rank also has a whole draft model."""
    options = ("--dtype", "float32", "--page-size", "8", "--draft-model", "pico")
    with pair(tmp_path_factory.mktemp("two"), *options, "--split", request.param) as started:
        yield started


@contextmanager
def streamed(server: Server, **fields: object) -> Iterator[Iterator[str]]:
    """Yield the lines of a stream that has begun."""
    body = {**HELLO, "stream": True, **fields}
    with httpx.stream("POST", server.url + CHAT, json=body, timeout=30) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        yield lines


def test_two_ranks_answer_as_one_process(two: Pair) -> None:
    check_answers(two.server, "pico")
    assert two.server.metric("spec_decode_num_accepted_tokens_total") > 0


def test_a_hybrid_on_two_ranks_answers_as_one_process(start: Start, tmp_path: Path) -> None:
    name = str(hybrid_checkpoint(tmp_path / "hybrid"))
    options = ("--model", name, "--dtype", "float32", "--page-size", "8")
    check_answers(start(*options, "--kv-cache-memory", "0.1").server, name)


def check_answers(server: Server, name: str) -> None:
    """Compare the answers of a server with those of `generate`, with and without a prefix cache."""
    backend = BackendChoice.choose("auto", "float32")
    model, tokenizer = load(name, ops=backend.ops, dtype=mx.float32)
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": question}])
        for question in QUESTIONS
    ]
    expected = [
        "".join(piece.text for piece in generate(model, tokenizer, prompt, max_tokens=16))
        for prompt in prompts
    ]
    assert all(expected)

    def ask(prompt: list[int]) -> str:
        body = {"prompt": prompt, "max_tokens": 16, "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        return str(answer.json()["choices"][0]["text"])

    for _ in range(2):  # the second time from the prefix cache
        with ThreadPoolExecutor(len(prompts)) as threads:
            assert list(threads.map(ask, prompts)) == expected
    assert server.metric("prefix_cache_hits_total") > 3 * 8


def test_grammars_logprobs_and_embeddings_work(two: Pair) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    body = {**HELLO, "response_format": form, "max_tokens": 8, "logprobs": True, "top_logprobs": 2}
    answer = httpx.post(two.server.url + CHAT, json=body, timeout=60).json()["choices"][0]
    assert answer["message"]["content"].lstrip("-").isdigit()
    assert len(answer["logprobs"]["content"][0]["top_logprobs"]) == 2
    body = {"input": "what is rope?"}
    response = httpx.post(f"{two.server.url}/v1/embeddings", json=body, timeout=60).json()
    assert sum(x * x for x in response["data"][0]["embedding"]) == pytest.approx(1)


def test_signals_end_all_ranks_after_running_requests(two: Pair) -> None:
    with streamed(two.server, max_tokens=60, ignore_eos=True) as lines:
        for number in (signal.SIGTERM, signal.SIGINT):
            two.worker.send_signal(number)
        two.server.process.send_signal(signal.SIGTERM)
        two.server.wait_for("draining")
        rest = "".join(lines)
    assert '"finish_reason":"length"' in rest
    assert two.server.wait() == 0
    assert '"event": "ended"' in two.worker_log()
    assert two.worker.returncode == 0


def test_a_dead_rank_fails_running_requests_and_ends_the_server(
    start: Start, endless: Path
) -> None:
    two = start("--model", str(endless), "--kv-cache-memory", "0.2", "--max-tokens", "100000")
    url = two.server.url
    with streamed(two.server) as lines:
        two.worker.kill()
        *_, event, _, end, _ = lines
        again = httpx.post(url + CHAT, json=HELLO)
        health = httpx.get(f"{url}/health")
    error = json.loads(event.removeprefix("data: "))["error"]
    assert (error["message"], error["code"]) == ("rank 1 has left: the group ends", "unavailable")
    assert end == "data: [DONE]"
    for answer in (again, health):
        assert (answer.status_code, answer.json()["error"]) == (503, error)
    assert two.server.wait(5.0) == 1


def test_a_hanging_rank_fails_new_requests(start: Start, endless: Path) -> None:
    two = start("--model", str(endless), "--kv-cache-memory", "0.2", "--max-tokens", "100000")
    two.worker.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    answer = httpx.post(two.server.url + CHAT, json=HELLO, timeout=30)
    assert answer.status_code == 503
    assert "rank 1 has given no sign of life for 10 s" in answer.json()["error"]["message"]
    assert two.server.wait(5.0) == 1
    assert time.monotonic() - stopped < 20
    two.worker.send_signal(signal.SIGCONT)
    assert "rank 0 has left: the group ends" in two.worker_log()
    assert two.worker.returncode == 1


def test_a_second_signal_does_not_wait_for_a_hanging_rank(start: Start, endless: Path) -> None:
    two = start("--model", str(endless), "--kv-cache-memory", "0.2", "--max-tokens", "100000")
    with streamed(two.server):
        two.worker.send_signal(signal.SIGSTOP)
        os.waitpid(two.worker.pid, os.WUNTRACED)  # until it has stopped
        two.server.process.send_signal(signal.SIGTERM)
        two.server.wait_for("draining")
        two.server.process.send_signal(signal.SIGTERM)
        assert two.server.wait(8.0) == 0
    assert two.server.entries("ended")
    two.worker.send_signal(signal.SIGCONT)
    assert "rank 0 has left: the group ends" in two.worker_log()


def test_a_dead_server_ends_the_other_rank(start: Start, endless: Path) -> None:
    two = start("--model", str(endless), "--kv-cache-memory", "0.2", "--max-tokens", "100000")
    with streamed(two.server):
        two.server.process.kill()
        assert "rank 0 has left: the group ends" in two.worker_log()
    assert two.worker.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_launcher_ends_all_ranks(number: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "log"
    launcher = Path(sys.executable).with_name("mlx.launch")
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    command = [str(launcher), "-n", "2", "--backend", "ring", "--starting-port", str(port), "--"]
    # A shell between the launcher and the rank, as `uv run` would be.
    command += ["sh", "-c", f"'{sys.executable}' -m tinyllm_serve --port 0 --model pico; true"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TINYLLM_NUM_THREADS": "1"}

    def pids() -> list[int]:
        lines = [json.loads(each) for each in log.read_text().splitlines() if each[:1] == "{"]
        return [each["pid"] for each in lines if each["event"] in ("ready", "worker ready")]

    with (
        ExitStack() as stack,
        log.open("w") as output,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output
        ) as launched,
    ):
        stack.callback(kill, pids)
        stack.callback(launched.kill)
        wait_until(lambda: len(pids()) == 2, 90)
        launched.send_signal(number)
        launched.wait(5)
        wait_until(lambda: not any(map(is_running, pids())), 10)


def kill(pids: Callable[[], list[int]]) -> None:
    """Kill processes that a failed test has left."""
    for pid in filter(is_running, pids()):
        os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Return True if a process exists and has not ended."""
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return bool(found.stdout.strip()) and not found.stdout.startswith("Z")


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("split", "expected"),
    [("layers", "expected several processes, got one"), ("rows", "expected heads, ")],
)
def test_a_split_needs_several_processes(split: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected), joined(Settings(split=split)):
        pass


def test_replicas_need_a_single_process(monkeypatch: pytest.MonkeyPatch) -> None:
    check_alone("--ray")
    monkeypatch.setenv("MLX_RANK", "0")
    with pytest.raises(UsageError, match="--ray: expected one process, but a launcher has started"):
        check_alone("--ray")


def test_a_launcher_may_start_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("")
    monkeypatch.setenv("MLX_HOSTFILE", str(hosts))
    monkeypatch.setenv("MLX_RANK", "0")
    check_alone("--ray")
    with joined(Settings(prefix_cache_path=Path("prefixes"))) as group:
        assert group is None
    with (
        pytest.raises(UsageError, match="expected several processes, got one"),
        joined(Settings(split="layers")),
    ):
        pass


def test_a_prefix_cache_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_RANK", "0")
    with (
        pytest.raises(UsageError, match="-path: expected none with several processes"),
        joined(Settings(prefix_cache_path=Path("prefixes"))),
    ):
        pass
