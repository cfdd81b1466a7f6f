"""The memory for keys and values limits answers, and is checked at the start."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIError, OpenAI
from tinyllm_qwen.testing import hybrid_checkpoint
from tinyllm_serve.errors import ServeError
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings
from tinyllm_serve.testing import Server

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HELLO = [{"role": "user", "content": "hello"}]
LONG = "word " * 600
DIGITS = {"regex": "[0-9]{4000}"}
Start = Callable[..., Server]


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """A server whose pages hold fewer tokens than pico's context of 2,048."""
    with Server("--kv-cache-memory", "0.001", "--page-size", "16") as server:
        yield server


@pytest.fixture(scope="module")
def capacity(small: Server) -> int:
    """The number of tokens that the pages of `small` hold."""
    return 16 * int(str(small.wait_for("ready")["pages"]))


def post(server: Server, path: str, **body: object) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=60)


def test_the_start_warns_that_answers_will_be_shorter(
    small: Server, pico: Server, capacity: int
) -> None:
    assert capacity < 2048
    text = f"the pages hold {capacity} tokens, and the context is 2048: "
    (notice,) = [entry for entry in small.log() if str(entry["event"]).startswith(text)]
    assert notice["level"] == "warning"
    assert not any("the pages hold" in str(entry["event"]) for entry in pico.log())


def test_clients_learn_what_one_request_can_use(small: Server, pico: Server, capacity: int) -> None:
    for server, tokens in ((small, capacity), (pico, 2048)):
        (model,) = httpx.get(f"{server.url}/v1/models").json()["data"]
        assert model["max_model_len"] == tokens
        assert post(server, "/tokenize", prompt="hello").json()["max_model_len"] == tokens


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        (CHAT, {"messages": HELLO, "structured_outputs": DIGITS}, "prompt_tokens"),
        (RESPONSES, {"input": HELLO, "structured_outputs": DIGITS}, "input_tokens"),
    ],
)
def test_an_answer_without_a_limit_fills_the_pages(
    small: Server, capacity: int, path: str, body: dict[str, Any], name: str
) -> None:
    answer = post(small, path, **body)
    assert answer.status_code == 200
    usage = answer.json()["usage"]
    assert usage["total_tokens"] == capacity
    assert usage[name] < capacity


def test_each_prompt_has_a_limit_of_its_own(small: Server, capacity: int) -> None:
    prompts = [[5] * (capacity - 3), [6] * 40]
    answer = post(small, TEXT, prompt=prompts, ignore_eos=True)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 3 + 16


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        (CHAT, {"messages": HELLO, "max_tokens": 32_000}, "prompt_tokens"),
        (RESPONSES, {"input": HELLO, "max_output_tokens": 32_000}, "input_tokens"),
        (TEXT, {"prompt": "hello", "max_tokens": 32_000}, "prompt_tokens"),
    ],
)
def test_a_limit_beyond_the_pages_fills_them(
    small: Server, capacity: int, path: str, body: dict[str, Any], name: str
) -> None:
    answer = post(small, path, **body, structured_outputs=DIGITS)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    assert usage["total_tokens"] == capacity
    assert usage[name] < capacity
    assert "length" in answer.text or "max_output_tokens" in answer.text


def test_all_choices_fill_the_pages(small: Server, capacity: int) -> None:
    fields = {"n": 3, "max_tokens": 32_000, "temperature": 1, "structured_outputs": DIGITS}
    answer = post(small, CHAT, messages=HELLO, **fields).json()
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * 3
    usage = answer["usage"]
    assert usage["completion_tokens"] == 3 * (capacity - usage["prompt_tokens"])


@pytest.mark.parametrize("param", ["max_tokens", "max_completion_tokens"])
def test_too_many_log_probabilities_name_the_limit_of_the_client(busy: Server, param: str) -> None:
    limit = {param: 60_000, "logprobs": True, "top_logprobs": 20}
    error = post(busy, CHAT, messages=HELLO, **limit).json()["error"]
    assert error["param"] == "logprobs"
    assert f": lower {param}, or stream " in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        (TEXT, {"prompt": LONG, "max_tokens": 1}, "prompt"),
        (RESPONSES, {"input": LONG}, "input"),
        ("/v1/embeddings", {"input": LONG}, "input"),
    ],
)
def test_a_prompt_that_does_not_fit_is_named(
    small: Server, capacity: int, path: str, body: dict[str, Any], param: str
) -> None:
    answer = post(small, path, **body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert error["message"].startswith(f"{param}: expected at most {capacity - 1} tokens, ")
    assert error["message"].endswith(f"maximum context length is {capacity} tokens")


@pytest.mark.parametrize("words", [1, 20])
def test_a_stream_of_responses_has_the_error_of_a_long_prompt(small: Server, words: int) -> None:
    """Codex compacts a conversation only after this event: the status 400 would end its turn."""
    body = {"input": LONG * words, "stream": True}
    answer = post(small, RESPONSES, **body)
    assert answer.status_code == 200
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line[6:]) for line in lines]
    kinds = ["response.created", "response.in_progress", "error", "response.failed"]
    assert [event["type"] for event in events] == kinds
    assert [event["sequence_number"] for event in events] == [0, 1, 2, 3]
    failed = events[-1]["response"]
    assert (failed["status"], failed["usage"]) == ("failed", None)
    assert failed["error"]["code"] == "context_length_exceeded"
    assert failed["error"]["message"].startswith("input: ")
    with OpenAI(base_url=f"{small.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.responses.create(model="pico", input=LONG * words, stream=True)
        with pytest.raises(APIError) as caught:
            list(stream)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hybrid_checkpoint(tmp_path_factory.mktemp("models") / "qwen35")


def refusal(**options: Any) -> str:
    with pytest.raises(ServeError) as caught:
        Service(Settings(**options))._make()
    return str(caught.value)


def test_too_little_memory_names_the_option_in_its_unit(hybrid: Path) -> None:
    text = refusal(kv_cache_memory=0.001, page_size=2048)
    assert "memory_bytes" not in text
    least = text.removeprefix("--kv-cache-memory: expected at least ").split()[0]
    assert " GB for one page of 2048 tokens, got 0.001: " in text
    Service(Settings(kv_cache_memory=float(least), page_size=2048))._make()


def test_too_little_free_memory_is_no_fault_of_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinyllm_engine.kv.memory_plan.free_memory", lambda: 1_000_000)
    text = refusal()
    assert text.startswith("expected at least ")
    assert " GB of free memory for 1024 tokens, got 0.000" in text
    assert "None" not in text


def test_more_than_the_free_memory_names_the_option_in_its_unit() -> None:
    # MLX's allocator for CPUs reports no failure: the process would end by a signal.
    text = refusal(kv_cache_memory=100_000.0)
    start, _, most = text.partition(" GB for pages and states, within the free memory, got ")
    assert most == "100000.0: give less"
    assert 0 < float(start.removeprefix("--kv-cache-memory: expected at most ")) < 100_000


def test_a_context_is_at_most_that_of_the_model() -> None:
    text = refusal(max_model_len=2049)
    assert text == "--max-model-len: expected at most 2048, the model's context, got 2049"


def test_snapshots_that_do_not_fit_name_the_option_in_its_unit(hybrid: Path) -> None:
    options: dict[str, Any] = {"model": str(hybrid), "kv_cache_memory": 0.01, "page_size": 8}
    text = refusal(**options, snapshot_memory=0.02)
    start = "--snapshot-memory: expected 0, or from "
    assert text.startswith(start)
    least, _, most, *_ = text.removeprefix(start).split()
    assert " GB for snapshots, got 0.02: " in text
    for memory in (0.0, float(least), float(most)):
        Service(Settings(**options, snapshot_memory=memory))._make()
