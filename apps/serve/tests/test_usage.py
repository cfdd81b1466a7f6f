"""Token counts of answers, and in the chunks of a stream."""

from typing import Any

import openai
import pytest
from tinyllm_engine import Output, Request, Usage
from tinyllm_serve.generation.generate import Answer
from tinyllm_serve.generation.parsers import AnswerParser
from tinyllm_serve.testing import Server

MESSAGES = [{"role": "user", "content": "#think"}]
BODIES: list[dict[str, Any]] = [
    {"messages": MESSAGES},
    {"messages": MESSAGES, "n": 2},
    {"prompt": "#think"},
    {"prompt": ["#think", "#json"], "n": 2},
]


@pytest.mark.parametrize("body", BODIES)
def test_each_chunk_can_have_the_usage_so_far(scripted: Server, body: dict[str, Any]) -> None:
    with openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="none") as client:
        create: Any = (client.chat.completions if "messages" in body else client.completions).create
        options: dict[str, Any] = {"model": "scripted", "stream": True, "max_tokens": 8, **body}
        both = {"include_usage": True, "continuous_usage_stats": True}
        *chunks, last = create(**options, stream_options=both)
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            counts = [getattr(chunk.usage, name) for chunk in chunks]
            assert counts == sorted(counts)
            assert 0 < counts[0] <= counts[-1] == getattr(last.usage, name)
        alone = [*create(**options, stream_options={"continuous_usage_stats": True})]
        assert all(chunk.usage and chunk.choices for chunk in alone)
        off = create(**options, stream_options={"continuous_usage_stats": False})
        assert all(chunk.usage is None for chunk in off)


@pytest.mark.parametrize(
    ("texts", "opened", "count"),
    [
        (["<think>", "Hm.", "</think>", "\n\n", "It is."], False, 3),
        (["<think>", "Hm.", "</think>It", " is."], False, 3),
        (["\n", "Hm.", "\n", "</", "think>", "\n\n", "It is."], True, 5),
        (["<think>", "\n", "</think>", "It is."], False, 3),
        (["<think>", "Hm", "."], False, 3),
        (["It", " is."], False, 0),
    ],
)
def test_tokens_from_tag_to_tag_are_reasoning(texts: list[str], opened: bool, count: int) -> None:
    answer = Answer(Request([1]), AnswerParser(opened=opened), 0)
    for number, text in enumerate(texts, start=1):
        answer.add(Output(text, 0, None, Usage(1, 0, number)))
    assert answer.reasoning_tokens == count
