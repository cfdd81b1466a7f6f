"""The answers to a conversation, as chunks or as one object."""

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from secrets import token_hex

from tinyllm_engine import Output

from tinyllm_serve.choice import Choice
from tinyllm_serve.choices import Choices, Steps
from tinyllm_serve.event_stream import Event
from tinyllm_serve.logprobs import chat_logprob
from tinyllm_serve.parts import Content, Part, Reasoning, ToolCall
from tinyllm_serve.request_note import Note
from tinyllm_serve.schemas.chat_answer import (
    AnswerMessage,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatDelta,
    ChatLogprobs,
    ToolCallBody,
)
from tinyllm_serve.schemas.chat_request import ChatRequest
from tinyllm_serve.schemas.messages import CalledFunction
from tinyllm_serve.schemas.usage import UsageBody
from tinyllm_serve.service import Service


class ChatCompletion:
    """A request under way: `events` or `answer`, once."""

    def __init__(self, service: Service, asked: ChatRequest, steps: Steps, note: Note) -> None:
        """Begin.

        Args:
            service: the model that answers.
            asked: what it was asked.
            steps: of its answers.
            note: gets the counts.
        """
        self._service = service
        self._asked = asked
        self._choices = Choices(steps, note, asked.choices)
        self._id = f"chatcmpl-{token_hex(12)}"
        self._created = int(time.time())

    async def events(self) -> AsyncGenerator[Event, None]:
        """The chunks of a stream."""
        async with aclosing(self._choices.taken()) as steps:
            async for index, step in steps:
                choice = self._choices[index]
                if len(choice.outputs) == 1:
                    opening = AnswerMessage(role="assistant", content="")
                    yield self._chunk(ChatDelta(index=index, delta=opening))
                *deltas, last = [*_deltas(step.parts, len(choice.calls)), AnswerMessage()]
                for delta in deltas:
                    yield self._chunk(ChatDelta(index=index, delta=delta))
                logprobs = self._logprobs([step.output])
                if logprobs or step.finish_reason:
                    yield self._chunk(
                        ChatDelta(
                            index=index,
                            delta=last,
                            logprobs=logprobs,
                            finish_reason=step.finish_reason,
                        )
                    )
        if self._asked.include_usage:
            yield self._chunk(usage=self._choices.usage)

    async def answer(self) -> ChatAnswer:
        """The object that says it all."""
        await self._choices.complete()
        return ChatAnswer(
            id=self._id,
            created=self._created,
            model=self._service.name,
            choices=[
                ChatChoice(
                    index=index,
                    message=_message(choice),
                    logprobs=self._logprobs(choice.outputs),
                    finish_reason=choice.ending or "stop",
                )
                for index, choice in enumerate(self._choices)
            ],
            usage=self._choices.usage,
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

    def _logprobs(self, outputs: list[Output]) -> ChatLogprobs | None:
        if not self._asked.logprobs:
            return None
        scored = [chat_logprob(output, self._service.tokenizer) for output in outputs]
        return ChatLogprobs(content=scored)


def _deltas(parts: Sequence[Part], calls: int) -> Iterator[AnswerMessage]:
    """What is new, after which there are so many calls in all."""
    calls -= sum(isinstance(part, ToolCall) for part in parts)
    for part in parts:
        match part:
            case Content(text):
                yield AnswerMessage(content=text)
            case Reasoning(text):
                yield AnswerMessage(reasoning_content=text)
            case ToolCall():
                yield AnswerMessage(tool_calls=[_call(part, calls)])
                calls += 1


def _message(choice: Choice) -> AnswerMessage:
    calls = [_call(call) for call in choice.calls]
    return AnswerMessage(
        role="assistant",
        content=None if calls and not choice.content else choice.content,
        reasoning_content=choice.reasoning or None,
        tool_calls=calls or None,
    )


def _call(call: ToolCall, index: int | None = None) -> ToolCallBody:
    function = CalledFunction(name=call.name, arguments=call.arguments)
    return ToolCallBody(index=index, id=call.id, function=function)
