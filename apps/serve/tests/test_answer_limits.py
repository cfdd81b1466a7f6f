"""The most tokens of an answer without a number in the request."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request
from tinyllm_engine import AsyncEngine
from tinyllm_serve.clients import Client
from tinyllm_serve.generation.generate import MAX_KEPT_LOGPROBS, Answer, Generation
from tinyllm_serve.generation.parsers import PlainText
from tinyllm_serve.protocol.chat import ChatRequest
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings

CONTEXT = 262_144


class LongService(Service):
    """A service of a model with a long context, which is never loaded."""

    @property
    def max_model_len(self) -> int:
        return CONTEXT


def limits(prompt: int, option: int | None = None, **fields: Any) -> list[int]:
    """Return the limits of the answers to a prompt, with `--max-tokens option`."""
    prompts = [[5] * prompt]
    return [answer.request.max_tokens for answer in answers(prompts, option, **fields)]


def answers(prompts: list[list[int]], option: int | None = None, **fields: Any) -> list[Answer]:
    """Return the answers to prompts, with `--max-tokens option`, before their first token."""
    settings = Settings(max_tokens=option)
    service = LongService(settings)
    service.engine = cast(AsyncEngine, SimpleNamespace(max_requests=100))
    scope = {"type": "http", "state": {"log_fields": {}, "client": Client()}}
    hello = {"role": "user", "content": "hello"}
    body = ChatRequest.model_validate({"messages": [hello], **fields})
    generation = Generation(
        service,
        body,
        Request(scope),
        prompts,
        PlainText,
        max_tokens=body.token_limit,
        default_tokens=settings.max_tokens,
        grammar=None,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    return generation.answers


@pytest.mark.parametrize(
    ("prompt", "option", "fields", "limit"),
    [
        (100, None, {}, CONTEXT - 100),
        (CONTEXT, None, {}, 1),  # the engine refuses the prompt
        (100, 4096, {}, 4096),
        (CONTEXT - 100, 4096, {}, 100),
        (100, 4096, {"max_tokens": 5000}, 5000),
        (100, None, {"logprobs": True}, CONTEXT - 100),
        (100, None, {"logprobs": True, "top_logprobs": 20}, MAX_KEPT_LOGPROBS // 21),
        (100, None, {"logprobs": True, "top_logprobs": 20, "stream": True}, CONTEXT - 100),
    ],
)
def test_the_limit(prompt: int, option: int | None, fields: dict[str, Any], limit: int) -> None:
    assert limits(prompt, option, **fields) == [limit]


def test_choices_share_the_log_probabilities() -> None:
    assert limits(100, n=4, logprobs=True, top_logprobs=20) == [MAX_KEPT_LOGPROBS // 84] * 4


def test_choices_share_one_copy_of_their_prompt() -> None:
    first, *others = answers([[5] * 100], n=4)
    assert first.request.prompt == (5,) * 100
    assert all(other.request.prompt is first.request.prompt for other in others)
