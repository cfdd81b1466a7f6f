"""Embeddings of many texts in one request."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import tokenizers
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_serve.testing import Server


def embed(server: Server, texts: object, **fields: Any) -> httpx.Response:
    body = {"input": texts, **fields}
    return httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=120)


def test_2048_texts_are_embedded_in_their_order(pico: Server) -> None:
    texts = [f"text {number % 64}" for number in range(2048)]
    answer = embed(pico, texts).json()
    assert [each["index"] for each in answer["data"]] == list(range(2048))
    vectors = [each["embedding"] for each in answer["data"]]
    alone = [each["embedding"] for each in embed(pico, texts[:64]).json()["data"]]
    for number in (0, 63, 64, 2047):
        assert vectors[number] == pytest.approx(alone[number % 64], abs=1e-5)
    assert answer["usage"]["prompt_tokens"] > 2048


def test_numbers_and_base64_are_equal(pico: Server) -> None:
    with openai.OpenAI(base_url=f"{pico.url}/v1", api_key="none") as client:
        encoded = client.embeddings.create(model="pico", input=["a", "b"])  # as base64
    numbers = embed(pico, ["a", "b"]).json()["data"]
    for each, other in zip(encoded.data, numbers, strict=True):
        assert each.embedding == pytest.approx(other["embedding"], abs=1e-7)


def test_the_dimensions_may_be_those_of_the_model(pico: Server) -> None:
    (plain,) = embed(pico, ["a"]).json()["data"]
    width = len(plain["embedding"])
    assert embed(pico, ["a"], dimensions=width).json()["data"] == [plain]
    error = embed(pico, ["a"], dimensions=width // 2).json()["error"]
    assert error["message"].startswith(f"dimensions: expected {width}, the width of the model's")


def test_an_embedding_model_gets_the_end_token_of_its_tokenizer(
    tmp_path: Path, start: Callable[..., Server]
) -> None:
    folder = Path(shutil.copytree(resolve("pico"), tmp_path / "embedding"))
    path = str(folder / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(path)
    end = ("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[end]
    )
    tokenizer.save(path)
    server = start("--model", str(folder))
    expected = tokenizer.encode("hello world").ids
    assert expected[-1] == end[1]
    answer = embed(server, "hello world").json()
    assert answer["usage"]["prompt_tokens"] == len(expected)
    assert answer["data"] == embed(server, expected).json()["data"]
    for tokens, fields in (
        (expected, {}),
        (expected, {"add_special_tokens": True}),
        (expected[:-1], {"add_special_tokens": False}),
    ):
        body = {"prompt": "hello world", **fields}
        assert httpx.post(f"{server.url}/tokenize", json=body).json()["tokens"] == tokens
    chat = {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True}
    error = httpx.post(f"{server.url}/tokenize", json=chat).json()["error"]
    assert error["param"] == "add_special_tokens"
    completion = {"prompt": "hello world", "max_tokens": 1}
    usage = httpx.post(f"{server.url}/v1/completions", json=completion).json()["usage"]
    assert usage["prompt_tokens"] == len(expected) - 1


def test_a_short_queue_refuses_no_request_of_many_texts(start: Callable[..., Server]) -> None:
    server = start("--max-num-seqs", "1", "--max-waiting", "1")
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda text: embed(server, [text] * 40), "ab"))
    assert [answer.status_code for answer in answers] == [200, 200]


def test_all_results_together_have_a_bound(start: Callable[..., Server]) -> None:
    server = start("--max-body", "100000", "--max-body-memory", "1000000")
    url = f"{server.url}/v1/embeddings"
    answer = httpx.post(url, json={"input": [[5]] * 2048})  # 2 MB of results
    assert answer.status_code == 503
    assert "too many long bodies and results" in answer.json()["error"]["message"]
    assert httpx.post(url, json={"input": [[5]] * 16}).status_code == 200


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ("", "expected at least one token, got none"),
        ([5, 10**6], "expected token ids from 0 to "),
        ("word " * 3000, "expected at most "),
        ([5] * 3000, "expected fewer tokens than the model's context"),
    ],
)
def test_a_text_that_can_never_be_embedded_is_refused_before_any_work(
    pico: Server, last: object, reason: str
) -> None:
    before = pico.metric("prompt_tokens_total")
    texts = ["a"] * 200 if isinstance(last, str) else [[5]] * 200
    error = embed(pico, [*texts, last]).json()["error"]
    assert error["param"] == "input.200"
    assert error["message"].startswith(f"input.200: {reason}")
    assert embed(pico, last).json()["error"]["param"] == "input"
    assert pico.metric("prompt_tokens_total") == before


def asked_and_ended(server: Server, texts: list[str]) -> httpx.Response:
    """Return the answer to a request that is computed when the server gets SIGTERM."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(embed, server, texts)
        while server.metric("prompt_tokens_total") == 0:
            time.sleep(0.02)
        os.kill(server.process.pid, signal.SIGTERM)
        server.wait_for("draining")
        refused = embed(server, ["late"])
        assert (refused.status_code, asked.done()) == (503, False)
        answer = asked.result()
    assert server.wait() == 0
    return answer


def test_the_end_of_the_server_waits_for_all_texts(start: Callable[..., Server]) -> None:
    answer = asked_and_ended(start(), [f"text {number}" for number in range(2048)])
    assert answer.status_code == 200
    assert all(each["embedding"] for each in answer.json()["data"])


def test_texts_that_are_cut_off_get_an_error(start: Callable[..., Server], endless: Path) -> None:
    options = ("--kv-cache-memory", "0.2", "--timeout-graceful-shutdown", "1")
    answer = asked_and_ended(start("--model", str(endless), *options), ["a" * 100_000] * 20)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["message"] == "the server is shutting down"
