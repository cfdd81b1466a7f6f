"""The log-probabilities of a prompt: `echo` beside `logprobs`, as evaluations ask for them."""

import asyncio
import json
import math
import threading
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import httpx
import mlx.core as mx
import pytest
from openai import BadRequestError, OpenAI
from tinyllm_engine import Output
from tinyllm_layers import Batch
from tinyllm_qwen import load
from tinyllm_serve.application import make_application
from tinyllm_serve.http import json_text
from tinyllm_serve.routes.completions import TextCompletion
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings
from tinyllm_serve.testing import Server

TEXT = "RMSNorm divides a vector by its root mean square"


def complete(pico: Server, **body: Any) -> Any:
    with OpenAI(base_url=f"{pico.url}/v1", api_key="-", max_retries=0) as client:
        answer = client.completions.create(model="pico", temperature=0, echo=True, **body)
        return list(answer) if body.get("stream") else answer


@pytest.fixture(scope="module")
def expected() -> tuple[list[float], list[float]]:
    """The log-probabilities of the tokens of `TEXT` after the first, and of the likeliest ones."""
    model, tokenizer = load("pico")
    tokens = tokenizer.encode(TEXT)
    logits = model(mx.array([tokens]), batch=Batch.at(0, 1, len(tokens), "prefill"))
    rows = cast("list[list[float]]", logits[0, :-1].tolist())
    totals = [math.log(sum(map(math.exp, row))) for row in rows]
    return (
        [row[token] - total for token, row, total in zip(tokens[1:], rows, totals, strict=True)],
        [max(row) - total for row, total in zip(rows, totals, strict=True)],
    )


@pytest.mark.parametrize("max_tokens", [0, 1, 2])
def test_a_prompt_is_scored(
    pico: Server, expected: tuple[list[float], list[float]], max_tokens: int
) -> None:
    answer = complete(pico, prompt=TEXT, logprobs=1, max_tokens=max_tokens)
    choice, length = answer.choices[0], answer.usage.prompt_tokens
    scores = choice.logprobs
    assert choice.text.startswith(TEXT)
    assert "".join(scores.tokens) == choice.text
    assert "".join(scores.tokens[:length]) == TEXT
    assert len(scores.tokens) == length + max_tokens
    assert (scores.token_logprobs[0], scores.top_logprobs[0]) == (None, None)
    assert scores.token_logprobs[1:length] == pytest.approx(expected[0], abs=0.1)
    best = [max(top.values()) for top in scores.top_logprobs[1:length]]
    assert best == pytest.approx(expected[1], abs=0.1)
    starts = [choice.text[start:] for start in scores.text_offset]
    assert all(map(str.startswith, starts, scores.tokens))
    assert answer.usage.completion_tokens == max_tokens
    assert choice.finish_reason == "length"


@pytest.mark.parametrize("prompt", ["<|im_start|>user\nhi<|im_end|>\n", "ü🙂 = 🙂ü"])
def test_a_prompt_is_repeated_as_it_is(pico: Server, prompt: str) -> None:
    choice = complete(pico, prompt=prompt, logprobs=1, max_tokens=0).choices[0]
    assert choice.text == prompt
    scores = choice.logprobs
    # A token that begins a character begins where the character does.
    whole = [*zip(scores.tokens, scores.text_offset, strict=True)]
    assert all(prompt[at:].startswith(token) for token, at in whole if "\ufffd" not in token)
    assert scores.text_offset == sorted(scores.text_offset)


def test_a_stream_begins_with_the_scores_of_the_prompt(pico: Server) -> None:
    whole = complete(pico, prompt=TEXT, logprobs=2, max_tokens=3).choices[0]
    chunks = complete(pico, prompt=TEXT, logprobs=2, max_tokens=3, stream=True)
    parts = [chunk.choices[0] for chunk in chunks]
    assert "".join(part.text for part in parts) == whole.text
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        streamed = [item for part in parts for item in getattr(part.logprobs, field)]
        assert streamed == getattr(whole.logprobs, field)
    (only,) = complete(pico, prompt=TEXT, logprobs=2, max_tokens=0, stream=True)
    assert only.choices[0].text == TEXT
    assert only.choices[0].finish_reason == "length"


def test_a_stream_prepares_the_scores_of_the_prompt_outside_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare, encode = TextCompletion._logprobs, json.dumps
    in_loop: list[bool] = []
    longest: Counter[bool] = Counter()  # length of a text that is encoded in the event loop or not

    def is_in_loop() -> bool:
        return threading.current_thread() is threading.main_thread()

    def logprobs(self: TextCompletion, outputs: Sequence[Output], offset: int) -> Any:
        if outputs[0].prompt_logprobs:
            in_loop.append(is_in_loop())
        return prepare(self, outputs, offset)

    def dumps(value: object, **options: Any) -> str:
        text = encode(value, **options)
        longest[is_in_loop()] = max(longest[is_in_loop()], len(text))
        return text

    monkeypatch.setattr(TextCompletion, "_logprobs", logprobs)
    monkeypatch.setattr(json_text, "json", SimpleNamespace(dumps=dumps))
    monkeypatch.setattr(json_text, "ITEMS_AT_ONCE", 10)

    async def score() -> str:
        service = Service(Settings())
        await service.start()
        transport = httpx.ASGITransport(make_application(service))
        fields = {"echo": True, "logprobs": 5, "max_tokens": 1, "stream": True}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            prompt = [5] * 1000
            return (await client.post("/v1/completions", json={"prompt": prompt, **fields})).text

    text = asyncio.run(score())
    assert "[DONE]" in text
    assert in_loop == [False]
    assert len(text) > 50_000
    assert 0 < longest[True] < 1000
    assert 0 < longest[False] < 5000  # in parts: an encoder keeps Python's lock until it has ended


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
def test_a_list_is_encoded_in_parts(count: int) -> None:
    items = [{"a": number, "b": None, "c": ["[,]"]} for number in range(count)]
    assert json_text.list_json(items) == json_text.json_bytes(items)


def test_token_lists_are_scored_like_their_texts(pico: Server) -> None:
    tokens = load("pico")[1].encode(TEXT)
    answer = complete(pico, prompt=[tokens, tokens[:1]], logprobs=0, max_tokens=0, n=2)
    texts = complete(pico, prompt=TEXT, logprobs=0, max_tokens=0)
    scores = [choice.logprobs.token_logprobs for choice in answer.choices]
    assert scores[0] == scores[1] == texts.choices[0].logprobs.token_logprobs
    assert scores[2] == scores[3] == [None]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": "a", "max_tokens": 0}, "max_tokens: expected at least 1 without echo and"),
        (
            {"prompt": [[5] * 1500] * 128, "logprobs": 5, "max_tokens": 0, "stream": True},
            "logprobs: .* got up to 1,152,000: send fewer prompts",
        ),
    ],
)
def test_what_cannot_be_scored_is_refused(pico: Server, body: Any, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        complete(pico, **body)
