"""One answer, on its way from the engine to the client."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from tinyllm_engine import AsyncEngine, Output, Request, Usage

from tinyllm_serve.answer_parser import AnswerParser
from tinyllm_serve.metrics import Metrics
from tinyllm_serve.parts import Part
from tinyllm_serve.plain_text import PlainText

Ending = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class Step:
    """A token, and what it made certain.

    Attributes:
        parts: what to show.
        output: the token.
        finish_reason: None before the last step.
        reasoning_tokens: tokens of thinking so far.
    """

    parts: Sequence[Part]
    output: Output
    finish_reason: Ending | None
    reasoning_tokens: int

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return self.output.usage


async def generation(
    engine: AsyncEngine,
    request: Request,
    parser: AnswerParser | PlainText,
    metrics: Metrics,
    *,
    one_call: bool = False,
) -> AsyncGenerator[Step, None]:
    """Give an answer step by step; closing it takes the request back.

    Args:
        engine: what generates.
        request: what is asked of it.
        parser: what takes the text apart.
        metrics: gets the times.
        one_call: whether the first call of a function ends the answer.

    Raises:
        RequestError, EngineFullError, EngineClosedError: as `AsyncEngine.stream`.
    """
    latest, seconds = time.perf_counter(), metrics.first_token_seconds
    reasoning_tokens = 0
    async with aclosing(engine.stream(request)) as outputs:
        async for output in outputs:
            now = time.perf_counter()
            seconds.observe(now - latest)
            latest, seconds = now, metrics.between_tokens_seconds
            reasoning_tokens += parser.thinking
            parts = parser.push(output.text)
            ending: Ending | None = None
            if output.finish_reason is not None:
                parts += parser.finish()
                ending = "length" if output.finish_reason == "length" else "stop"
            if parser.calls and (ending == "stop" or one_call):
                ending = "tool_calls"
            yield Step(parts, output, ending, reasoning_tokens)
            if ending is not None:
                return
