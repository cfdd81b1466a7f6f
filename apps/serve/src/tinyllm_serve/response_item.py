"""An item of a response's output, and the events that tell of it."""

from collections.abc import Iterator
from secrets import token_hex

from tinyllm_serve.event_stream import Event
from tinyllm_serve.parts import ToolCall


class TextItem:
    """Thinking or text, while it is generated.

    Attributes:
        thinking: which of them.
        text: what there is so far.
    """

    def __init__(self, place: int, *, thinking: bool) -> None:
        """Begin an item.

        Args:
            place: in the output.
            thinking: whether it is thinking rather than the answer.
        """
        self.thinking = thinking
        self.text = ""
        self._place = place
        self._id = f"{'rs' if thinking else 'msg'}_{token_hex(12)}"
        self._kind = "reasoning_text" if thinking else "output_text"

    @property
    def body(self) -> Event:
        """The complete item."""
        return self._body([self._part], "completed")

    def open(self) -> Iterator[Event]:
        """That it has begun."""
        yield self._event("output_item.added", item=self._body([], "in_progress"))
        yield self._event("content_part.added", **self._where, part=self._part)

    def add(self, text: str) -> Event:
        """That more of it has come."""
        self.text += text
        return self._event(f"{self._kind}.delta", **self._where, **self._scores, delta=text)

    def close(self) -> Iterator[Event]:
        """That it is complete."""
        yield self._event(f"{self._kind}.done", **self._where, **self._scores, text=self.text)
        yield self._event("content_part.done", **self._where, part=self._part)
        yield self._event("output_item.done", item=self.body)

    @property
    def _where(self) -> Event:
        return {"item_id": self._id, "content_index": 0}

    @property
    def _scores(self) -> Event:
        return {} if self.thinking else {"logprobs": []}

    @property
    def _part(self) -> Event:
        part: Event = {"type": self._kind, "text": self.text}
        return part if self.thinking else {**part, "annotations": []}

    def _body(self, content: list[Event], status: str) -> Event:
        item: Event = {"id": self._id, "status": status, "content": content}
        if self.thinking:
            return {**item, "type": "reasoning", "summary": []}
        return {**item, "type": "message", "role": "assistant"}

    def _event(self, kind: str, **fields: object) -> Event:
        return {"type": f"response.{kind}", "output_index": self._place, **fields}


class CallOutput:
    """A call of a function, which comes whole."""

    def __init__(self, place: int, call: ToolCall) -> None:
        """Take a call for a place in the output."""
        self._place = place
        self._call = call
        self._id = f"fc_{token_hex(12)}"

    @property
    def body(self) -> Event:
        """The item."""
        return self._body("completed", self._call.arguments)

    def events(self) -> Iterator[Event]:
        """All that is to tell of it."""
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
        return {"type": f"response.{kind}", "output_index": self._place, **fields}
