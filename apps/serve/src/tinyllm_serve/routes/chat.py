"""POST /v1/chat/completions."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from secrets import token_hex

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.requests import Request
from tinyllm_engine import Grammar, Output, TokenLogprob
from tinyllm_qwen import Tokenizer

from tinyllm_serve.generation.generate import Answer, Generation
from tinyllm_serve.generation.grammar import chat_grammar
from tinyllm_serve.generation.parameter_types import FunctionSchemas
from tinyllm_serve.generation.parsers import AnswerParser
from tinyllm_serve.generation.parts import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Part,
    Reasoning,
)
from tinyllm_serve.generation.prompt import Prompt
from tinyllm_serve.generation.threads import run_in_thread
from tinyllm_serve.http.api_key import client_of
from tinyllm_serve.http.body import BodyRoute, discard_body
from tinyllm_serve.http.json_text import JsonObject, json_bytes, with_choices
from tinyllm_serve.http.request_log import log_fields
from tinyllm_serve.http.sse import STREAM_RESPONSE, EventStream
from tinyllm_serve.protocol.base import ChatFinishReason
from tinyllm_serve.protocol.chat import (
    AnswerMessage,
    ChatChoice,
    ChatRequest,
    ChatResponse,
    ToolCallBody,
)
from tinyllm_serve.protocol.messages import CalledFunction
from tinyllm_serve.routes.dependencies import ModelService
from tinyllm_serve.routes.tokenize import MAX_TEXT_TOKENS
from tinyllm_serve.service import Service

router = APIRouter(tags=["chat"], route_class=BodyRoute)


@router.post("/v1/chat/completions", response_model=ChatResponse, responses=STREAM_RESPONSE)
async def chat_completions(body: ChatRequest, request: Request, service: ModelService) -> Response:
    """Continue a conversation. With `stream` the response is server-sent events."""
    log = log_fields(request)
    log["user"] = body.end_user
    log["images_left_out"] = body.images_left_out or None
    generation = await start_chat(service, body, request)
    completion = ChatCompletion(service, body, generation)
    stream = body.stream
    discard_body(request, body)
    if stream:
        return EventStream(completion.events(), service.settings.sse_keep_alive)
    await generation.finish()
    text = await asyncio.to_thread(completion.json)
    return Response(text, media_type="application/json")


async def start_chat(service: Service, body: ChatRequest, request: Request) -> Generation:
    """Prepare the answers to a conversation.

    Raises:
        ApiError: if the request names another model, or cannot be served.
        TemplateError: if the model's chat template refuses the conversation.
    """
    service.check_model(body.model)
    client = client_of(request)
    # In a thread, so that other streams continue while long texts are rendered.
    prompt, grammar = await run_in_thread(service.rate_limiter, client, _prepare, service, body)
    functions = FunctionSchemas(
        {tool.function.name: tool.function.parameters or {} for tool in body.offered_tools}
    )
    return Generation(
        service,
        body,
        request,
        [prompt.tokens],
        lambda: AnswerParser(
            opened=prompt.opened, functions=functions, call_format=prompt.call_format
        ),
        max_tokens=body.token_limit,
        default_tokens=service.settings.max_tokens,
        grammar=grammar,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        one_call=body.parallel_tool_calls is False,
    )


async def count_prompt(service: Service, body: ChatRequest, request: Request) -> int:
    """Return the number of tokens of a conversation's prompt, tools included."""
    limit = max(service.context_length, MAX_TEXT_TOKENS)
    client = client_of(request)
    prompt = await run_in_thread(service.rate_limiter, client, _prompt, service, body, limit)
    return len(prompt.tokens)


def _prepare(service: Service, body: ChatRequest) -> tuple[Prompt, Grammar | None]:
    """Return the prompt of a conversation, and the grammar of its answer."""
    prompt = _prompt(service, body, service.max_prompt)
    return prompt, chat_grammar(body, prompt)


def _prompt(service: Service, body: ChatRequest, max_tokens: int) -> Prompt:
    return Prompt.of_chat(
        service.tokenizer,
        body.messages,
        body.offered_tools,
        body.template_variables.over(service.template_defaults),
        max_tokens=max_tokens,
        continues=body.continue_final_message or False,
        max_model_len=service.max_model_len,
        allow_special_tokens=service.settings.allow_special_tokens,
    )


class ChatCompletion:
    """Converts answers to OpenAI's objects. Call either `events` or `json`, once."""

    def __init__(self, service: Service, body: ChatRequest, generation: Generation) -> None:
        """Prepare the objects of a generation. The body is not kept."""
        self._service = service
        self._logprobs = bool(body.logprobs)
        self._include_usage = body.include_usage
        self._usage_in_chunks = body.usage_in_chunks
        self._generation = generation
        self._id = f"chatcmpl-{token_hex(12)}"
        self._created = int(time.time())
        self._chunk_fields: JsonObject = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": service.name,
            "system_fingerprint": None,
            "service_tier": "default",
            **({"usage": None} if body.include_usage else {}),
        }

    async def events(self) -> AsyncGenerator[JsonObject, None]:
        """Yield the chunks of a stream."""
        calls: Counter[int] = Counter()  # of each answer
        async with aclosing(self._generation.tokens()) as tokens:
            async for token in tokens:
                index = token.index
                if token.is_first:
                    opening: JsonObject = {"role": "assistant", "content": "", "refusal": None}
                    yield self._chunk(index, opening)
                logprobs: JsonObject | None = None
                if self._logprobs:
                    chosen = _chosen(token.output, self._service.tokenizer)
                    logprobs = {"content": [chosen], "refusal": None}
                shown = [part for part in token.parts if not isinstance(part, CallEnd)]
                for number, part in enumerate(shown, 1):
                    calls[index] += isinstance(part, CallStart)
                    scores = None
                    if number == len(shown):  # clients drop the scores of an empty delta
                        scores, logprobs = logprobs, None
                    yield self._chunk(index, _delta(part, calls[index] - 1), scores)
                if logprobs or token.finish_reason:
                    yield self._chunk(index, {}, logprobs, token.finish_reason)
        if self._include_usage:
            usage = self._generation.usage.model_dump()
            yield {**self._chunk_fields, "choices": [], "usage": usage}

    def json(self) -> bytes:
        """Return the complete answers as JSON. Slow with log-probabilities: use a thread."""
        fields = ChatResponse(
            id=self._id,
            created=self._created,
            model=self._service.name,
            choices=[],
            usage=self._generation.usage,
        )
        choices = map(self._choice, self._generation.answers)
        return with_choices(fields.model_dump(exclude={"choices"}), choices)

    def _choice(self, answer: Answer) -> bytes:
        choice = ChatChoice(
            index=answer.index,
            message=_message(answer),
            logprobs=None,
            finish_reason=answer.finish_reason or "stop",
        )
        if not self._logprobs:
            return choice.model_dump_json().encode()
        fields = choice.model_dump_json(exclude={"logprobs"}).encode()[:-1]
        tokens = [json_bytes(_chosen(each, self._service.tokenizer)) for each in answer.outputs]
        return b'%s,"logprobs":{"content":[%s],"refusal":null}}' % (fields, b",".join(tokens))

    def _chunk(
        self,
        index: int,
        delta: JsonObject,
        logprobs: JsonObject | None = None,
        finish_reason: ChatFinishReason | None = None,
    ) -> JsonObject:
        """Return an event with the new part of one answer."""
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        counts: JsonObject = {}
        if self._usage_in_chunks:
            counts["usage"] = self._generation.usage.model_dump()
        return {**self._chunk_fields, **counts, "choices": [choice]}


def _delta(part: Part, call: int) -> JsonObject:
    """Return a part of an answer for a chunk. `call` is the index of the current call."""
    match part:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallStart(name, identity):
            function = {"name": name, "arguments": ""}
            start = {"index": call, "id": identity, "type": "function", "function": function}
            return {"tool_calls": [start]}
        case CallArguments(text):
            return {"tool_calls": [{"index": call, "function": {"arguments": text}}]}
        case CallEnd():
            return {}


def _message(answer: Answer) -> AnswerMessage:
    calls = [
        ToolCallBody(id=call.id, function=CalledFunction(name=call.name, arguments=call.arguments))
        for call in answer.calls
    ]
    return AnswerMessage(
        content=None if calls and not answer.content else answer.content,
        reasoning_content=answer.reasoning or None,
        tool_calls=calls or None,
    )


def _chosen(output: Output, tokenizer: Tokenizer) -> JsonObject:
    """Return a `ChosenLogprob` as a dictionary, which takes half the time of the object."""
    assert output.logprob is not None
    chosen = _logprob(TokenLogprob(output.token, output.logprob), tokenizer)
    return {**chosen, "top_logprobs": [_logprob(each, tokenizer) for each in output.top]}


def _logprob(scored: TokenLogprob, tokenizer: Tokenizer) -> JsonObject:
    token = tokenizer.token_bytes(scored.token)
    # A token may hold a part of a character, which is shown as U+FFFD.
    text = token.decode(errors="replace")
    return {"token": text, "logprob": scored.logprob, "bytes": list(token)}
