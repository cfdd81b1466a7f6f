"""What POST /v1/responses gives: events, the last of which has it all."""

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from secrets import token_hex

from tinyllm_serve.choices import Choices, Steps
from tinyllm_serve.event_stream import Event
from tinyllm_serve.field_names import RESPONSES, named
from tinyllm_serve.generation import Step
from tinyllm_serve.parts import Part, Reasoning, ToolCall
from tinyllm_serve.request_note import Note
from tinyllm_serve.response_item import CallOutput, TextItem
from tinyllm_serve.schemas.response_request import ResponseRequest
from tinyllm_serve.schemas.tools import NamedFunction, ToolMode
from tinyllm_serve.service import Service


class ModelResponse:
    """A request under way: `events` or `answer`, once."""

    def __init__(self, service: Service, asked: ResponseRequest, steps: Steps, note: Note) -> None:
        """Begin.

        Args:
            service: the model that answers.
            asked: what it was asked.
            steps: of its answer.
            note: gets the counts.
        """
        self._service = service
        self._asked = asked
        self._choices = Choices(steps, note, 1)
        self._output: list[Event] = []
        self._open: TextItem | None = None
        self._id = f"resp_{token_hex(12)}"
        self._created = int(time.time())

    async def events(self) -> AsyncGenerator[Event, None]:
        """The events of a stream, numbered."""
        number = 0
        async with aclosing(self._events()) as events:
            async for event in events:
                yield {**event, "sequence_number": number}
                number += 1

    async def answer(self) -> Event:
        """The response that the last event has."""
        async with aclosing(self._events()) as events:
            async for _ in events:
                pass
        return self._body(self._status)

    async def _events(self) -> AsyncGenerator[Event, None]:
        async with aclosing(self._steps()) as steps:
            async for step in steps:
                if len(self._choices[0].outputs) == 1:
                    for kind in ("created", "in_progress"):
                        yield {"type": f"response.{kind}", "response": self._body("in_progress")}
                for part in step.parts:
                    for event in self._tell(part):
                        yield event
        for event in self._close():
            yield event
        yield {"type": f"response.{self._status}", "response": self._body(self._status)}

    async def _steps(self) -> AsyncGenerator[Step, None]:
        with named(RESPONSES):
            async with aclosing(self._choices.taken()) as steps:
                async for _, step in steps:
                    yield step

    @property
    def _status(self) -> str:
        """How it ended."""
        return "incomplete" if self._choices[0].ending == "length" else "completed"

    def _tell(self, part: Part) -> Iterator[Event]:
        """The events of a part."""
        if isinstance(part, ToolCall):
            yield from self._close()
            call = CallOutput(len(self._output), part)
            yield from call.events()
            self._output.append(call.body)
            return
        thinking = isinstance(part, Reasoning)
        if self._open is not None and self._open.thinking != thinking:
            yield from self._close()
        if self._open is None:
            self._open = TextItem(len(self._output), thinking=thinking)
            yield from self._open.open()
        yield self._open.add(part.text)

    def _close(self) -> Iterator[Event]:
        """The events that end the item under way."""
        if self._open is not None:
            yield from self._open.close()
            self._output.append(self._open.body)
            self._open = None

    def _body(self, status: str) -> Event:
        asked, usage = self._asked, None
        if status != "in_progress":
            counted = self._choices.usage
            usage = {
                "input_tokens": counted.prompt_tokens,
                "input_tokens_details": counted.prompt_tokens_details.model_dump(),
                "output_tokens": counted.completion_tokens,
                "output_tokens_details": counted.completion_tokens_details.model_dump(),
                "total_tokens": counted.total_tokens,
            }
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._service.name,
            "output": list(self._output),
            "usage": usage,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"}
            if status == "incomplete"
            else None,
            "instructions": asked.instructions,
            "metadata": asked.metadata or {},
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "max_output_tokens": asked.max_output_tokens,
            "tool_choice": _told(asked.tool_choice),
            "tools": [tool.model_dump() for tool in asked.tools or []],
            "store": False,
        }


def _told(choice: ToolMode | NamedFunction | None) -> object:
    """The choice as it was made."""
    return choice.model_dump() if isinstance(choice, NamedFunction) else choice or "auto"
