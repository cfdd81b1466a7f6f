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
            yield from self._add_call(part)
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
            self.bodies.append(self._open.body("completed"))
            self._open = None

    def _add_call(self, call: ToolCall) -> Iterator[Event]:
        """Add the item of a function call, which is generated whole."""
        index, identity = len(self.bodies), f"fc_{token_hex(12)}"
        named = {"call_id": call.id, "name": call.name}
        started = {"id": identity, "type": "function_call", "status": "in_progress", **named}
        complete: Event = {**started, "status": "completed", "arguments": call.arguments}
        end = {"item_id": identity, "name": call.name, "arguments": call.arguments}
        kind = "function_call_arguments"
        yield _event("output_item.added", index, item={**started, "arguments": ""})
        yield _event(f"{kind}.delta", index, item_id=identity, delta=call.arguments)
        yield _event(f"{kind}.done", index, **end)
        yield _event("output_item.done", index, item=complete)
        self.bodies.append(complete)


class OutputTextItem:
    """An item of reasoning or text, while it is generated.

    Attributes:
        reasoning: True for reasoning, False for text of the answer.
        text: the text so far.
    """

    def __init__(self, output_index: int, *, reasoning: bool) -> None:
        """Begin an item, with its index in the output."""
        self.reasoning = reasoning
        self.text = ""
        self._output_index = output_index
        self._kind = "reasoning_text" if reasoning else "output_text"
        self._id = f"{'rs' if reasoning else 'msg'}_{token_hex(12)}"
        self._location = {"item_id": self._id, "content_index": 0}
        self._logprobs: Event = {} if reasoning else {"logprobs": []}

    def body(self, status: str) -> Event:
        """Return the item. With the status "in_progress" the content is still empty."""
        content = [] if status == "in_progress" else [self._part]
        item: Event = {"id": self._id, "status": status, "content": content}
        if self.reasoning:
            return {**item, "type": "reasoning", "summary": []}
        return {**item, "type": "message", "role": "assistant"}

    def open(self) -> Iterator[Event]:
        """Yield the events of the item's beginning."""
        index = self._output_index
        yield _event("output_item.added", index, item=self.body("in_progress"))
        yield _event("content_part.added", index, **self._location, part=self._part)

    def add(self, text: str) -> Event:
        """Add text, and return its event."""
        self.text += text
        fields = {**self._location, **self._logprobs, "delta": text}
        return _event(f"{self._kind}.delta", self._output_index, **fields)

    def close(self) -> Iterator[Event]:
        """Yield the events of the item's end."""
        index = self._output_index
        end = {**self._location, **self._logprobs, "text": self.text}
        yield _event(f"{self._kind}.done", index, **end)
        yield _event("content_part.done", index, **self._location, part=self._part)
        yield _event("output_item.done", index, item=self.body("completed"))

    @property
    def _part(self) -> Event:
        part: Event = {"type": self._kind, "text": self.text}
        return part if self.reasoning else {**part, "annotations": []}


def _event(kind: str, output_index: int, **fields: object) -> Event:
    return {"type": f"response.{kind}", "output_index": output_index, **fields}
