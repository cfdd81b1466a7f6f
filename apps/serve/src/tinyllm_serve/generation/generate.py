"""The answers to one HTTP request, while the engine generates them."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from secrets import token_hex

from starlette.requests import Request
from tinyllm_engine import Grammar, Output, UnreadOutputError, Usage
from tinyllm_engine import Request as EngineRequest
from tinyllm_engine.async_engine import MAX_UNREAD_OUTPUTS

from tinyllm_serve.clients import Client
from tinyllm_serve.generation.parsers import Parser
from tinyllm_serve.generation.parts import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Part,
    Reasoning,
    ToolCall,
)
from tinyllm_serve.http.api_key import client_of
from tinyllm_serve.http.disconnect import cancel
from tinyllm_serve.http.errors import ApiError, renamed_fields
from tinyllm_serve.http.request_log import log_fields
from tinyllm_serve.protocol.base import ChatFinishReason, UsageBody
from tinyllm_serve.protocol.sampling import SamplingFields
from tinyllm_serve.service import Service

MAX_KEPT_LOGPROBS = 1 << 20
"""The most log-probabilities of a response that is no stream, and of prompts. Each takes 150 bytes
of memory until the response is complete, and 75 bytes of JSON."""

MAX_UNREAD_PER_ANSWER = 64
"""Number of unread tokens that each answer of a response may have, if together they exceed
`MAX_UNREAD_OUTPUTS`: a client may pause for a few steps with any number of answers."""


@dataclass(frozen=True)
class AnswerToken:
    """One generated token of an answer.

    Attributes:
        index: the answer's index in the response.
        parts: the parts of the answer that can be sent since this token.
        output: the token as the engine has returned it.
        finish_reason: None before the last token.
        is_first: True for the first token of the answer.
    """

    index: int
    parts: Sequence[Part]
    output: Output
    finish_reason: ChatFinishReason | None
    is_first: bool


@dataclass
class Answer:
    """An answer in progress.

    Attributes:
        request: the request to the engine.
        parser: the parser of the text, which divides it into parts.
        index: the answer's index in the response.
        one_call: True to end the answer after its first function call.
        keeps_outputs: True to keep the outputs for their log-probabilities.
        content: the text so far, without reasoning and calls.
        reasoning: the reasoning so far.
        calls: the function calls so far, of which the last may be incomplete.
        outputs: the outputs so far, if they are kept.
        reasoning_tokens: the number of tokens of the reasoning so far, from the one that completes
            `<think>` to the one that completes `</think>`, which may have text after it.
        usage: token counts so far; None before the first token.
        finish_reason: None until the answer has ended.
    """

    request: EngineRequest
    parser: Parser
    index: int
    one_call: bool = False
    keeps_outputs: bool = False
    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    reasoning_tokens: int = 0
    usage: Usage | None = None
    finish_reason: ChatFinishReason | None = None

    def add(self, output: Output) -> AnswerToken:
        """Add the next token."""
        was_thinking = self.parser.thinking
        parts = [*self.parser.push(output.text)]
        self.reasoning_tokens += was_thinking or self.parser.thinking
        if output.finish_reason is not None:
            parts += self.parser.finish()
            self.finish_reason = "length" if output.finish_reason == "length" else "stop"
        for part in parts:
            match part:
                case Content(text):
                    self.content += text
                case Reasoning(text):
                    self.reasoning += text
                case CallStart(name, identity):
                    self.calls.append(ToolCall(name, identity))
                case CallArguments(text):
                    self.calls[-1].arguments += text
                case CallEnd():
                    self.calls[-1].is_complete = True
        has_calls = bool(self.calls) and self.calls[-1].is_complete
        if has_calls and (self.finish_reason == "stop" or self.one_call):
            self.finish_reason = "tool_calls"
        if self.keeps_outputs:
            self.outputs.append(output)
        is_first = self.usage is None
        self.usage = output.usage
        return AnswerToken(self.index, parts, output, self.finish_reason, is_first)


class Generation:
    """All answers to one HTTP request.

    Attributes:
        answers: the answers, complete once `tokens` has ended.
    """

    def __init__(
        self,
        service: Service,
        body: SamplingFields,
        request: Request,
        prompts: Sequence[Sequence[int]],
        make_parser: Callable[[], Parser],
        *,
        max_tokens: int | None,
        default_tokens: int | None,
        grammar: Grammar | None,
        logprobs: int | None,
        prompt_logprobs: bool = False,
        one_call: bool = False,
    ) -> None:
        """Prepare `body.choices` answers to each prompt. The body is not kept.

        `max_tokens` is the limit in the request. Without it an answer has at most `default_tokens`,
        or fewer if the context or the pages hold fewer beside its prompt. If both are None, a
        response that keeps log-probabilities is limited by their number.

        `logprobs` is the number of likeliest tokens to report, or None for no log-probabilities.
        With `prompt_logprobs` the first output of an answer has those of its prompt too. With
        `one_call` an answer ends after its first call. The token counts and the finish reasons are
        written to the log line of the request.

        Raises:
            ApiError: if a request can never be served.
        """
        self._service = service
        self._choices = body.choices
        self._field_names = body.field_names
        self._log = log_fields(request)
        self._client = client = client_of(request)
        _check_client_limits(service, body, len(prompts), client)
        self._log["priority"] = body.priority or None
        # A stream reports log-probabilities with each token, and need not keep them.
        keeps_outputs = logprobs is not None and not body.stream
        if default_tokens is None:
            kept = body.choices * (1 + (logprobs or 0)) if keeps_outputs else 0
            default_tokens = MAX_KEPT_LOGPROBS // kept if kept else service.max_model_len
        limits = [
            max(1, min(default_tokens, service.max_model_len - len(prompt)))
            if max_tokens is None
            else max_tokens
            for prompt in prompts
        ]
        longest = sum(min(limit, service.max_model_len) for limit in limits) if keeps_outputs else 0
        scored = sum(map(len, prompts)) if prompt_logprobs else 0
        _check_kept_logprobs(body, longest, scored, 1 + (logprobs or 0))
        group = token_hex(8)  # the answers take turns with other requests of the client
        self.answers: list[Answer] = []
        with renamed_fields(body.field_names):
            for given, limit in zip(prompts, limits, strict=True):
                prompt = given
                for choice in range(body.choices):
                    engine_request = EngineRequest(
                        prompt,
                        max_tokens=limit,
                        sampling=body.sampling_params(
                            service.defaults, choice=choice, top_logprobs=logprobs or 0
                        ),
                        stop=body.stops,
                        priority=body.priority,
                        tenant=client.tenant,
                        weight=client.weight,
                        group=group,
                        cache_salt=client.salt(body.cache_salt),
                        grammar=grammar,
                        logprobs=logprobs is not None,
                        prompt_logprobs=prompt_logprobs,
                        ignore_end=body.ignore_eos,
                    )
                    prompt = engine_request.prompt  # the choices share the copy of the first
                    index = len(self.answers)
                    answer = Answer(engine_request, make_parser(), index, one_call, keeps_outputs)
                    self.answers.append(answer)
        self._unfinished = len(self.answers)

    @property
    def usage(self) -> UsageBody:
        """Token counts so far, of the complete answers at the end."""
        return UsageBody.of(
            [answer.usage for answer in self.answers],
            sum(answer.reasoning_tokens for answer in self.answers),
            choices=self._choices,
        )

    def tokens(self) -> AsyncGenerator[AnswerToken, None]:
        """Yield the tokens of all answers as they come.

        Closing the generator cancels the engine's requests.

        Raises:
            ApiError: if a request can never be served, too many tokens are unread, or a
                log-probability is NaN.
            EngineFullError: if the queue or the memory for grammars is full; see
                `AsyncEngine.stream`.
            EngineClosedError: if the engine is closed, or fails before the answers are complete.
        """
        sources = [self._tokens_of(answer) for answer in self.answers]
        # A task between a single source and the reader would be woken for every token.
        return sources[0] if len(sources) == 1 else _merge(sources)

    async def finish(self) -> None:
        """Wait until all answers are complete. The errors are those of `tokens`."""
        async with aclosing(self.tokens()) as tokens:
            async for _ in tokens:
                pass

    async def _tokens_of(self, answer: Answer) -> AsyncGenerator[AnswerToken, None]:
        """Yield the tokens of one answer."""
        metrics = self._service.metrics
        start = latest = time.perf_counter()
        latency = metrics.time_to_first_token
        try:
            with renamed_fields(self._field_names):
                engine, rate_limiter = self._service.engine, self._service.rate_limiter
                async with (
                    rate_limiter.acquire(self._client, refuses=False),
                    aclosing(engine.stream(answer.request)) as outputs,
                ):
                    async for output in outputs:
                        now = time.perf_counter()
                        latency.observe(now - latest)
                        latest, latency = now, metrics.inter_token_latency
                        _check_logprobs(output)
                        token = answer.add(output)
                        yield token
                        if token.finish_reason is not None:
                            break
            metrics.e2e_request_latency.observe(latest - start)
            metrics.request_success.labels(answer.finish_reason).inc()
        except (GeneratorExit, asyncio.CancelledError):
            metrics.request_success.labels(answer.finish_reason or "abort").inc()
            raise
        except UnreadOutputError as error:
            raise _unread(error) from None
        finally:
            self._unfinished -= 1
            if not self._unfinished:
                self._write_log()

    def _write_log(self) -> None:
        """Write the token counts so far, and the finish reasons, to the log line."""
        usage = self.usage
        self._log["prompt_tokens"] = usage.prompt_tokens
        self._log["cached_tokens"] = usage.prompt_tokens_details.cached_tokens
        self._log["completion_tokens"] = usage.completion_tokens
        self._log["finish_reasons"] = [
            answer.finish_reason or "abort" for answer in self.answers if answer.usage is not None
        ]


def _check_client_limits(
    service: Service, body: SamplingFields, prompts: int, client: Client
) -> None:
    """Refuse a priority that the client may not have, and a request that can never be admitted.

    Raises:
        ApiError: 400.
    """
    if body.priority < -client.max_priority:
        message = f"priority: expected at least {-client.max_priority}, got {body.priority}"
        raise ApiError(400, message, param="priority")
    answers, room = prompts * body.choices, service.engine.max_requests
    if answers > room:
        message = (
            f"n: expected at most {room} answers in one request, got {prompts} prompts with "
            f"{body.choices} answers each: send several requests"
        )
        raise ApiError(400, message, param="n")


def _check_kept_logprobs(body: SamplingFields, generated: int, scored: int, logprobs: int) -> None:
    """Refuse a request whose log-probabilities would take too much memory.

    Args:
        body: the request.
        generated: the most generated tokens to keep, of one answer to each prompt.
        scored: the number of prompt tokens with log-probabilities.
        logprobs: the number of log-probabilities of a token.

    Raises:
        ApiError: 400.
    """
    kept = body.choices * (generated + scored) * logprobs
    if kept <= MAX_KEPT_LOGPROBS:
        return
    limit_field = body.field_names.get("max_tokens", "max_tokens")
    remedy = f"lower {limit_field}, or stream the response"
    message = (
        f"logprobs: expected at most {MAX_KEPT_LOGPROBS:,} of all tokens, "
        f"got up to {kept:,}: {'send fewer prompts' if scored > generated else remedy}"
    )
    raise ApiError(400, message, param="logprobs")


def not_finite() -> ApiError:
    """Return the error of a model whose results are no finite numbers."""
    message = (
        "the model computes NaN: its weights are damaged, or too large for the dtype: start the "
        "server with --dtype float32"
    )
    return ApiError(500, message, code="model_nan")


def _check_logprobs(output: Output) -> None:
    """Refuse log-probabilities that are NaN, which JSON cannot express.

    Damaged weights affect every token, so that the last token of a prompt is enough.

    Raises:
        ApiError: 500.
    """
    scored = [output.logprob, *(each.logprob for each in output.prompt_logprobs[-1:])]
    if any(logprob is not None and math.isnan(logprob) for logprob in scored):
        raise not_finite()


def _unread(error: UnreadOutputError) -> ApiError:
    """Return the error of a client that does not read its stream."""
    return ApiError(400, str(error), code="unread_output")


async def _merge(
    sources: Sequence[AsyncGenerator[AnswerToken, None]],
) -> AsyncGenerator[AnswerToken, None]:
    """Yield tokens as they come. The first error is raised, and all sources are closed.

    Raises:
        ApiError: if too many tokens are unread.
    """
    limit = max(MAX_UNREAD_OUTPUTS, MAX_UNREAD_PER_ANSWER * len(sources))
    ready: asyncio.Queue[AnswerToken | asyncio.Task[None]] = asyncio.Queue()

    async def forward(source: AsyncGenerator[AnswerToken, None]) -> None:
        async with aclosing(source):
            async for token in source:
                if ready.qsize() >= limit:
                    raise _unread(UnreadOutputError(ready.qsize()))
                ready.put_nowait(token)

    tasks = [asyncio.create_task(forward(source)) for source in sources]
    for task in tasks:
        task.add_done_callback(ready.put_nowait)
    running = len(tasks)
    try:
        while running:
            item = await ready.get()
            if isinstance(item, asyncio.Task):
                item.result()
                running -= 1
            else:
                yield item
    finally:
        await cancel(*tasks)
