"""The texts that follow prompts, as chunks or as one object."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from secrets import token_hex

from tinyllm_engine import Output

from tinyllm_serve.choices import Choices, Steps
from tinyllm_serve.event_stream import Event
from tinyllm_serve.logprobs import token_text
from tinyllm_serve.parts import Content
from tinyllm_serve.request_note import Note
from tinyllm_serve.schemas.completion_answer import (
    CompletionAnswer,
    CompletionChoice,
    CompletionLogprobs,
)
from tinyllm_serve.schemas.completion_request import CompletionRequest
from tinyllm_serve.service import Service


class TextCompletion:
    """A request under way: `events` or `answer`, once."""

    def __init__(
        self,
        service: Service,
        asked: CompletionRequest,
        prompts: Sequence[Sequence[int]],
        steps: Steps,
        note: Note,
    ) -> None:
        """Begin.

        Args:
            service: the model that goes on.
            asked: what it was asked.
            prompts: the tokens of each prompt.
            steps: of the texts.
            note: gets the counts.
        """
        self._service = service
        self._asked = asked
        self._echoes = [service.tokenizer.decode(p) if asked.echo else "" for p in prompts]
        self._choices = Choices(steps, note, asked.choices, len(prompts))
        self._id = f"cmpl-{token_hex(12)}"
        self._created = int(time.time())

    async def events(self) -> AsyncGenerator[Event, None]:
        """The chunks of a stream."""
        offsets = [0 for _ in self._choices]
        async with aclosing(self._choices.taken()) as steps:
            async for index, step in steps:
                text = "".join(part.text for part in step.parts if isinstance(part, Content))
                if len(self._choices[index].outputs) == 1:
                    text = self._echo(index) + text
                logprobs = self._logprobs([step.output], offsets[index])
                offsets[index] += len(text)
                if text or logprobs or step.finish_reason:
                    choice = CompletionChoice(
                        index=index,
                        text=text,
                        logprobs=logprobs,
                        finish_reason=step.finish_reason,
                    )
                    yield self._body([choice]).model_dump(exclude_none=True)
        if self._asked.include_usage:
            last = self._body([])
            last.usage = self._choices.usage
            yield last.model_dump(exclude_none=True)

    async def answer(self) -> CompletionAnswer:
        """The object that says it all."""
        await self._choices.complete()
        body = self._body(
            [
                CompletionChoice(
                    index=index,
                    text=self._echo(index) + choice.content,
                    logprobs=self._logprobs(choice.outputs, 0),
                    finish_reason=choice.ending,
                )
                for index, choice in enumerate(self._choices)
            ]
        )
        body.usage = self._choices.usage
        return body

    def _echo(self, index: int) -> str:
        return self._echoes[index // self._asked.choices]

    def _body(self, choices: list[CompletionChoice]) -> CompletionAnswer:
        return CompletionAnswer(
            id=self._id, created=self._created, model=self._service.name, choices=choices
        )

    def _logprobs(self, outputs: Sequence[Output], offset: int) -> CompletionLogprobs | None:
        """Of tokens that begin at an offset of the text; with stop strings, an estimate."""
        if self._asked.logprobs is None:
            return None
        tokenizer = self._service.tokenizer
        tokens = [token_text(output.token, tokenizer) for output in outputs]
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        return CompletionLogprobs(
            tokens=tokens,
            token_logprobs=[output.logprob or 0.0 for output in outputs],
            top_logprobs=[
                {token_text(rival.token, tokenizer): rival.logprob for rival in output.top}
                for output in outputs
            ],
            text_offset=offsets,
        )
