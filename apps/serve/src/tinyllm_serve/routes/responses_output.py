"""The output items of POST /v1/responses, and the events that announce them."""

from collections.abc import Iterator
from secrets import token_hex

from tinyllm_serve.generation.parsers import Part, Reasoning, ToolCall
from tinyllm_serve.http.sse import Event


class OutputItems:
    """The items of an answer: reasoning, messages and function calls, in their order.

    Attributes:
        bodies: the complete items.
    """

    def __init__(self) -> None:
        """Start an answer."""
        self.bodies: list[Event] = []
        self._open: OutputTextItem | None = None

    def add(self, part: Part) -> Iterator[Event]:
        """Add a part of the answer, and yield its events."""
        if isinstance(part, ToolCall):
            yield from self.close()
            call = OutputCallItem(len(self.bodies), part)
            yield from call.events()
            self.bodies.append(call.body)
            return
        reasoning = isinstance(part, Reasoning)
        if self._open is not None and self._open.reasoning != reasoning:
            yield from self.close()
        if self._open is None:
            self._open = OutputTextItem(len(self.bodies), reasoning=reasoning)
            yield from self._open.open()
        yield self._open.add(part.text)

    def close(self) -> Iterator[Event]:
        """Complete the open item, if there is one, and yield its events."""
        if self._open is not None:
            yield from self._open.close()
            self.bodies.append(self._open.body)
            self._open = None


class OutputTextItem:
    """An item of reasoning or text, while it is generated.

    Attributes:
        reasoning: True for reasoning.
        text: the text so far.
    """

    def __init__(self, output_index: int, *, reasoning: bool) -> None:
        """Begin an item.

        Args:
            output_index: the item's index in the output.
            reasoning: True for reasoning, False for text of the answer.
        """
        self.reasoning = reasoning
        self.text = ""
        self._output_index = output_index
        self._id = f"{'rs' if reasoning else 'msg'}_{token_hex(12)}"
        self._kind = "reasoning_text" if reasoning else "output_text"

    @property
    def body(self) -> Event:
        """The complete item."""
        return self._body([self._part], "completed")

    def open(self) -> Iterator[Event]:
        """Yield the events of the item's beginning."""
        yield self._event("output_item.added", item=self._body([], "in_progress"))
        yield self._event("content_part.added", **self._location, part=self._part)

    def add(self, text: str) -> Event:
        """Add text, and return its event."""
        self.text += text
        return self._event(f"{self._kind}.delta", **self._location, **self._logprobs, delta=text)

    def close(self) -> Iterator[Event]:
        """Yield the events of the item's end."""
        end = {**self._location, **self._logprobs, "text": self.text}
        yield self._event(f"{self._kind}.done", **end)
        yield self._event("content_part.done", **self._location, part=self._part)
        yield self._event("output_item.done", item=self.body)

    @property
    def _location(self) -> Event:
        return {"item_id": self._id, "content_index": 0}

    @property
    def _logprobs(self) -> Event:
        return {} if self.reasoning else {"logprobs": []}

    @property
    def _part(self) -> Event:
        part: Event = {"type": self._kind, "text": self.text}
        return part if self.reasoning else {**part, "annotations": []}

    def _body(self, content: list[Event], status: str) -> Event:
        item: Event = {"id": self._id, "status": status, "content": content}
        if self.reasoning:
            return {**item, "type": "reasoning", "summary": []}
        return {**item, "type": "message", "role": "assistant"}

    def _event(self, kind: str, **fields: object) -> Event:
        return {"type": f"response.{kind}", "output_index": self._output_index, **fields}


class OutputCallItem:
    """An item of a function call, which is generated whole."""

    def __init__(self, output_index: int, call: ToolCall) -> None:
        """Make the item of a call, with its index in the output."""
        self._output_index = output_index
        self._call = call
        self._id = f"fc_{token_hex(12)}"

    @property
    def body(self) -> Event:
        """The complete item."""
        return self._body("completed", self._call.arguments)

    def events(self) -> Iterator[Event]:
        """Yield all events of the item."""
        yield self._event("output_item.added", item=self._body("in_progress", ""))
        arguments = self._call.arguments
        kind = "function_call_arguments"
        yield self._event(f"{kind}.delta", item_id=self._id, delta=arguments)
        yield self._event(
            f"{kind}.done", item_id=self._id, name=self._call.name, arguments=arguments
        )
        yield self._event("output_item.done", item=self.body)

    def _body(self, status: str, arguments: str) -> Event:
        return {
            "id": self._id,
            "type": "function_call",
            "status": status,
            "call_id": self._call.id,
            "name": self._call.name,
            "arguments": arguments,
        }

    def _event(self, kind: str, **fields: object) -> Event:
        return {"type": f"response.{kind}", "output_index": self._output_index, **fields}
