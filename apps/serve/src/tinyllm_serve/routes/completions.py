"""POST /v1/completions."""

import asyncio
import time
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from secrets import token_hex

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.requests import Request
from tinyllm_engine import Grammar, Output, SampledToken

from tinyllm_serve.generation.generate import Answer, AnswerToken, Generation
from tinyllm_serve.generation.grammar import output_grammar
from tinyllm_serve.generation.parsers import PlainText
from tinyllm_serve.generation.parts import Content
from tinyllm_serve.generation.prompt import length_errors, token_lists
from tinyllm_serve.generation.threads import run_in_thread
from tinyllm_serve.http.api_key import client_of
from tinyllm_serve.http.body import BodyRoute, discard_body
from tinyllm_serve.http.json_text import JsonObject, json_bytes, list_json, with_choices
from tinyllm_serve.http.request_log import log_fields
from tinyllm_serve.http.sse import STREAM_RESPONSE, EventStream
from tinyllm_serve.protocol.base import UsageBody
from tinyllm_serve.protocol.completions import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
)
from tinyllm_serve.routes.dependencies import ModelService
from tinyllm_serve.service import Service

DEFAULT_MAX_TOKENS = 16


router = APIRouter(tags=["completions"], route_class=BodyRoute)


@router.post("/v1/completions", response_model=CompletionResponse, responses=STREAM_RESPONSE)
async def completions(body: CompletionRequest, request: Request, service: ModelService) -> Response:
    """Continue a text. With `stream` the response is server-sent events."""
    service.check_model(body.model)
    log_fields(request)["user"] = body.user
    client = client_of(request)
    # In a thread, so that other streams continue while long texts are encoded.
    prompts, echoes, grammar = await run_in_thread(
        service.rate_limiter, client, _prepare, service, body
    )
    generation = Generation(
        service,
        body,
        request,
        prompts,
        PlainText,
        max_tokens=body.max_tokens,
        default_tokens=DEFAULT_MAX_TOKENS,
        grammar=grammar,
        logprobs=body.logprobs,
        prompt_logprobs=body.scores_prompt,
    )
    completion = TextCompletion(service, body, echoes, generation)
    stream = body.stream
    discard_body(request, body)
    if stream:
        return EventStream(completion.events(), service.settings.sse_keep_alive)
    await generation.finish()
    text = await asyncio.to_thread(completion.json)
    return Response(text, media_type="application/json")


def _prepare(
    service: Service, body: CompletionRequest
) -> tuple[list[list[int]], list[str], Grammar | None]:
    """Return the prompts of a request, the texts before its answers, and the grammar."""
    with length_errors("prompt", service.max_model_len):
        prompts = list(token_lists(body.prompt, service.tokenizer, service.max_prompt))
    decode = partial(service.tokenizer.decode, skip_special_tokens=False)
    echoes = [decode(prompt) if body.echo else "" for prompt in prompts]
    return prompts, echoes, output_grammar(body)


class TextCompletion:
    """Converts texts to OpenAI's objects. Call either `events` or `json`, once."""

    def __init__(
        self,
        service: Service,
        body: CompletionRequest,
        echoes: Sequence[str],
        generation: Generation,
    ) -> None:
        """Prepare the objects of a generation; `echoes` are the texts before the answers.

        The body is not kept.
        """
        self._service = service
        self._choices = body.choices
        self._has_logprobs = body.logprobs is not None
        self._include_usage = body.include_usage
        self._usage_in_chunks = body.usage_in_chunks
        self._generation = generation
        self._echoes = echoes
        self._id = f"cmpl-{token_hex(12)}"
        self._created = int(time.time())

    async def events(self) -> AsyncGenerator[JsonObject | bytes, None]:
        """Yield the chunks of a stream. Those with log-probabilities of prompts are JSON."""
        offsets = [0 for _ in self._generation.answers]
        counted = self._usage_in_chunks
        unsent = set[str]() if counted or self._include_usage else {"usage"}
        async with aclosing(self._generation.tokens()) as tokens:
            async for token in tokens:
                index = token.index
                text = "".join(part.text for part in token.parts if isinstance(part, Content))
                if token.is_first:
                    text = self._echo(index) + text
                usage = self._generation.usage if counted else None
                offset = offsets[index]
                offsets[index] += len(text)
                if token.output.prompt_logprobs:  # in a thread: a long prompt takes a second
                    fields = self._response([], usage).model_dump(exclude={"choices"} | unsent)
                    choice = await asyncio.to_thread(self._prompt_choice, token, text, offset)
                    yield with_choices(fields, [choice])
                    continue
                logprobs = self._logprobs([token.output], offset)
                if text or logprobs or token.finish_reason:
                    chunk = CompletionChoice(
                        index=index,
                        text=text,
                        logprobs=logprobs,
                        finish_reason=token.finish_reason,
                    )
                    yield self._response([chunk], usage).model_dump(exclude=unsent)
        if self._include_usage:
            yield self._response([], self._generation.usage).model_dump()

    def json(self) -> bytes:
        """Return the complete texts as JSON. It takes long with log-probabilities: use a thread."""
        fields = self._response([], self._generation.usage).model_dump(exclude={"choices"})
        return with_choices(fields, map(self._choice, self._generation.answers))

    def _prompt_choice(self, token: AnswerToken, text: str, offset: int) -> bytes:
        """Return the choice of a chunk with log-probabilities of a prompt as JSON.

        They are encoded in parts, so that the event loop runs between them.
        """
        logprobs = self._logprobs([token.output], offset)
        assert logprobs is not None  # otherwise the engine scores no prompts
        lists = [b'"%s":%s' % (name.encode(), list_json(each)) for name, each in logprobs]
        fields = {"index": token.index, "text": text, "finish_reason": token.finish_reason}
        return b'%s,"logprobs":{%s}}' % (json_bytes(fields)[:-1], b",".join(lists))

    def _choice(self, answer: Answer) -> bytes:
        choice = CompletionChoice(
            index=answer.index,
            text=self._echo(answer.index) + answer.content,
            logprobs=self._logprobs(answer.outputs, 0),
            finish_reason=answer.finish_reason,
        )
        return choice.model_dump_json().encode()

    def _echo(self, index: int) -> str:
        return self._echoes[index // self._choices]

    def _response(
        self, choices: list[CompletionChoice], usage: UsageBody | None
    ) -> CompletionResponse:
        return CompletionResponse(
            id=self._id,
            created=self._created,
            model=self._service.name,
            choices=choices,
            usage=usage,
        )

    def _logprobs(self, outputs: Sequence[Output], offset: int) -> CompletionLogprobs | None:
        """Return log-probabilities of tokens that begin at an offset of the text.

        A token that completes no character begins where the next character does. With stop strings
        the offsets are an estimate, because text may be held back.
        """
        if not self._has_logprobs:
            return None
        scored: list[SampledToken | Output] = []
        for output in outputs:
            scored += output.prompt_logprobs
            if output.usage.completion_tokens:  # none if the prompt alone is scored
                scored.append(output)
        decoder, offsets = getincrementaldecoder("utf-8")("replace"), list[int]()
        for each in scored:
            offsets.append(offset)
            offset += len(decoder.decode(self._written(each)))
        return CompletionLogprobs(
            tokens=[self._text(each.token) for each in scored],
            token_logprobs=[each.logprob for each in scored],
            top_logprobs=[self._top(each) for each in scored],
            text_offset=offsets,
        )

    def _top(self, scored: SampledToken | Output) -> dict[str, float] | None:
        """Return a token and the likeliest ones by their texts, None for the first of a prompt.

        Of equal texts, the likeliest is kept.
        """
        if scored.logprob is None:
            return None
        likeliest = {self._text(each.token): each.logprob for each in reversed(scored.top)}
        return {self._text(scored.token): scored.logprob} | likeliest

    def _written(self, scored: SampledToken | Output) -> bytes:
        """Return the bytes of a token in the text: none of a control token of an answer."""
        tokenizer = self._service.tokenizer
        if isinstance(scored, Output) and scored.token in tokenizer.special_token_ids:
            return b""
        return tokenizer.token_bytes(scored.token)

    def _text(self, token: int) -> str:
        """Return the text of one token. A part of a character is shown as U+FFFD."""
        return self._service.tokenizer.token_bytes(token).decode(errors="replace")
