"""A server of a model with recurrent layers."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from tinyllm_qwen.testing import hybrid_checkpoint
from tinyllm_serve.testing import Server

QUESTION = "why is decoding slow on a cpu, and what is the kv cache for?"
OPTIONS = ("--page-size", "8", "--num-speculative-tokens", "2", "--kv-cache-memory", "0.03")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hybrid_checkpoint(tmp_path_factory.mktemp("models") / "qwen35")


@pytest.fixture(scope="module")
def hybrid(model: Path) -> Iterator[Server]:
    with Server("--model", str(model), *OPTIONS) as server:
        yield server


def texts(server: Server, *, n: int = 1) -> tuple[list[str], int]:
    """Return the texts of a response, and its number of cached tokens."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        chunks = client.chat.completions.create(
            model="qwen35",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=12,
            temperature=0,
            n=n,
            stream=True,
            stream_options={"include_usage": True},
        )
        found, cached = [""] * n, 0
        for chunk in chunks:
            for choice in chunk.choices:
                found[choice.index] += choice.delta.content or ""
                found[choice.index] += getattr(choice.delta, "reasoning_content", None) or ""
            if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
                cached = chunk.usage.prompt_tokens_details.cached_tokens or 0
    return found, cached


def test_choices_share_the_snapshot_of_their_prompt(hybrid: Server) -> None:
    (first,), cached = texts(hybrid)
    assert first
    assert cached == 0
    many, cached = texts(hybrid, n=3)
    assert many == [first] * 3
    assert cached >= 16
    assert hybrid.metric("prefix_snapshots") > 0
    assert hybrid.metric("prefix_snapshot_hits_total") >= 3
    assert hybrid.metric("prefix_snapshot_evictions_total") == 0
    assert hybrid.metric("prefix_snapshot_slots") > hybrid.metric("prefix_snapshots")
    assert hybrid.metric("recurrent_states") > 3
    hybrid.wait_until("recurrent_states_used", 0.0)
    hybrid.wait_until("kv_cache_pages_used", 0.0)


@pytest.mark.exhaustive  # tests of the engine restart it, and another one here a server
def test_a_restart_keeps_the_snapshots(model: Path, hybrid: Server, tmp_path: Path) -> None:
    options = ("--model", str(model), *OPTIONS, "--prefix-cache-path", str(tmp_path / "prefixes"))
    (expected,), _ = texts(hybrid)
    with Server(*options) as first:
        assert texts(first) == ([expected], 0)
        assert first.stop() == 0
    with Server(*options) as second:
        (text,), cached = texts(second)
        assert text == expected
        assert cached >= 16


def test_more_answers_than_states_and_places_of_the_queue_are_refused(model: Path) -> None:
    memory = ("--page-size", "8", "--kv-cache-memory", "0.003", "--snapshot-memory", "0")
    with Server("--model", str(model), *memory, "--max-waiting", "0") as server:
        states = int(server.metric("recurrent_states"))
        assert states < 32, "--max-num-seqs allows no more"
        answers = [
            httpx.post(f"{server.url}/v1/completions", json={"prompt": ["a"] * n, "max_tokens": 1})
            for n in (states, states + 1)
        ]
        assert [answer.status_code for answer in answers] == [200, 400]
        assert f"expected at most {states} answers" in answers[1].text


def test_the_draft_head_changes_no_text(model: Path, hybrid: Server) -> None:
    expected, _ = texts(hybrid, n=2)
    with Server("--model", str(model), *OPTIONS, "--draft-model", "mtp") as server:
        assert texts(server, n=2)[0] == expected
        (ready,) = [entry for entry in server.log() if entry["event"] == "ready"]
        assert (ready["draft_model"], ready["num_speculative_tokens"]) == ("mtp", 2)
        assert server.metric("spec_decode_num_draft_tokens_total") > 0


def test_the_memory_for_snapshots_is_an_option(model: Path) -> None:
    with Server("--model", str(model), *OPTIONS, "--snapshot-memory", "0") as server:
        (text,), cached = texts(server)
        assert text
        assert (texts(server)[1], cached) == (0, 0)
        assert any("share no prefixes" in str(entry["event"]) for entry in server.log())
        assert not any("no effect" in str(entry["event"]) for entry in server.log())
