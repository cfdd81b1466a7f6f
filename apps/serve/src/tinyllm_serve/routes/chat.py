"""POST /v1/chat/completions."""

import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from secrets import token_hex

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.requests import Request
from tinyllm_engine import Output, TokenLogprob
from tinyllm_qwen import Tokenizer

from tinyllm_serve.generation.generate import Answer, Generation
from tinyllm_serve.generation.grammar import chat_grammar
from tinyllm_serve.generation.parsers import AnswerParser, Content, Part, Reasoning, ToolCall
from tinyllm_serve.generation.prompt import Prompt
from tinyllm_serve.generation.text import run_on_text
from tinyllm_serve.http.disconnect import while_connected
from tinyllm_serve.http.middleware import LogFields, log_fields
from tinyllm_serve.http.sse import STREAM_RESPONSE, Event, EventStream
from tinyllm_serve.protocol.base import UsageBody
from tinyllm_serve.protocol.chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatDelta,
    ChatLogprobs,
    ChatRequest,
    ChatResponse,
    ChosenLogprob,
    TokenLogprobBody,
    ToolCallBody,
)
from tinyllm_serve.protocol.messages import CalledFunction
from tinyllm_serve.routes.dependencies import ModelService
from tinyllm_serve.service import Service

ENGINE_FIELDS = {"prompt": "messages"}
"""The endpoint's name for each field that the engine names differently."""

router = APIRouter(tags=["chat"])


@router.post("/v1/chat/completions", response_model=ChatResponse, responses=STREAM_RESPONSE)
async def chat_completions(body: ChatRequest, request: Request, service: ModelService) -> Response:
    """Continue a conversation. With `stream` the response is server-sent events."""
    log = log_fields(request)
    log["user"] = body.end_user
    generation = await start_chat(service, body, log, ENGINE_FIELDS)
    completion = ChatCompletion(service, body, generation)
    if body.stream:
        return EventStream(completion.events(), service.settings.sse_keep_alive)
    await while_connected(request, generation.finish())
    text = completion.response().model_dump_json(exclude_none=True)
    return Response(text, media_type="application/json")


async def start_chat(
    service: Service, body: ChatRequest, log: LogFields, field_names: Mapping[str, str]
) -> Generation:
    """Prepare the answers to a conversation.

    `field_names` maps the engine's names of fields to the endpoint's, for errors.

    Raises:
        ApiError: if the request names another model, or cannot be served.
        TemplateError: if the model's chat template refuses the conversation.
    """
    service.check_ready()
    service.check_model(body.model)
    # In a thread, so that other streams continue while a long conversation is rendered.
    prompt = await run_on_text(
        [body.messages, body.offered_tools],
        Prompt.of_chat,
        service.tokenizer,
        body.messages,
        body.offered_tools,
        body.template_variables,
        max_tokens=service.max_prompt,
        allow_special_tokens=service.settings.allow_special_tokens,
    )
    functions = [tool.function.name for tool in body.offered_tools]
    return Generation(
        service,
        body,
        [prompt.tokens],
        lambda: AnswerParser(opened=prompt.opened, functions=functions),
        log,
        max_tokens=body.token_limit or service.settings.max_tokens,
        grammar=chat_grammar(body, prompt),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        one_call=body.parallel_tool_calls is False,
        field_names=field_names,
    )


class ChatCompletion:
    """Converts answers to OpenAI's objects. Call either `events` or `response`, once."""

    def __init__(self, service: Service, body: ChatRequest, generation: Generation) -> None:
        """Prepare the objects of a generation."""
        self._service = service
        self._body = body
        self._generation = generation
        self._id = f"chatcmpl-{token_hex(12)}"
        self._created = int(time.time())

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the chunks of a stream."""
        async with aclosing(self._generation.tokens()) as tokens:
            async for token in tokens:
                if token.is_first:
                    opening = AnswerMessage(role="assistant", content="")
                    yield self._chunk(ChatDelta(index=token.index, delta=opening))
                for delta in _deltas(token.parts, token.calls_before):
                    yield self._chunk(ChatDelta(index=token.index, delta=delta))
                logprobs = self._logprobs([token.output])
                if logprobs or token.finish_reason:
                    yield self._chunk(
                        ChatDelta(
                            index=token.index,
                            delta=AnswerMessage(),
                            logprobs=logprobs,
                            finish_reason=token.finish_reason,
                        )
                    )
        if self._body.include_usage:
            yield self._chunk(usage=self._generation.usage)

    def response(self) -> ChatResponse:
        """Return the complete answers."""
        return ChatResponse(
            id=self._id,
            created=self._created,
            model=self._service.name,
            choices=[
                ChatChoice(
                    index=answer.index,
                    message=_message(answer),
                    logprobs=self._logprobs(answer.outputs),
                    finish_reason=answer.finish_reason or "stop",
                )
                for answer in self._generation.answers
            ],
            usage=self._generation.usage,
        )

    def _chunk(self, *deltas: ChatDelta, usage: UsageBody | None = None) -> Event:
        chunk = ChatChunk(
            id=self._id,
            created=self._created,
            model=self._service.name,
            choices=list(deltas),
            usage=usage,
        )
        return chunk.model_dump(exclude_none=True)

    def _logprobs(self, outputs: Sequence[Output]) -> ChatLogprobs | None:
        if not self._body.logprobs:
            return None
        tokenizer = self._service.tokenizer
        return ChatLogprobs(content=[_chosen(output, tokenizer) for output in outputs])


def _deltas(parts: Sequence[Part], calls_before: int) -> Iterator[AnswerMessage]:
    """Yield the messages of a stream for new parts of an answer."""
    for part in parts:
        match part:
            case Content(text):
                yield AnswerMessage(content=text)
            case Reasoning(text):
                yield AnswerMessage(reasoning_content=text)
            case ToolCall():
                yield AnswerMessage(tool_calls=[_call(part, calls_before)])
                calls_before += 1


def _message(answer: Answer) -> AnswerMessage:
    calls = [_call(call) for call in answer.calls]
    return AnswerMessage(
        role="assistant",
        content=None if calls and not answer.content else answer.content,
        reasoning_content=answer.reasoning or None,
        tool_calls=calls or None,
    )


def _call(call: ToolCall, index: int | None = None) -> ToolCallBody:
    function = CalledFunction(name=call.name, arguments=call.arguments)
    return ToolCallBody(index=index, id=call.id, function=function)


def _chosen(output: Output, tokenizer: Tokenizer) -> ChosenLogprob:
    assert output.logprob is not None
    chosen = _logprob(TokenLogprob(output.token, output.logprob), tokenizer)
    top = [_logprob(each, tokenizer) for each in output.top]
    return ChosenLogprob(**chosen.model_dump(), top_logprobs=top)


def _logprob(scored: TokenLogprob, tokenizer: Tokenizer) -> TokenLogprobBody:
    token = tokenizer.token_bytes(scored.token)
    # A token may hold a part of a character, which is shown as U+FFFD.
    return TokenLogprobBody(
        token=token.decode(errors="replace"), logprob=scored.logprob, bytes=list(token)
    )
