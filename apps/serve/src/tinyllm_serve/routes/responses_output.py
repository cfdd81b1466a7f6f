"""The output items of POST /v1/responses, and the events that announce them."""

from collections.abc import Iterator
from secrets import token_hex

from tinyllm_serve.generation.parts import CallArguments, CallEnd, CallStart, Part, Reasoning
from tinyllm_serve.http.json_text import JsonObject
from tinyllm_serve.protocol.responses import encoded_reasoning


class OutputItems:
    """The items of an answer: reasoning, messages and function calls, in their order.

    Attributes:
        bodies: the items that have ended.
    """

    def __init__(self, *, encoded: bool) -> None:
        """Start an answer. With `encoded`, reasoning items have `encrypted_content`."""
        self.bodies: list[JsonObject] = []
        self._encoded = encoded
        self._open: OutputTextItem | OutputCallItem | None = None

    def add(self, part: Part) -> Iterator[JsonObject]:
        """Add a part of the answer, and yield its events."""
        match part:
            case CallStart():
                yield from self.close("completed")
                self._open = OutputCallItem(len(self.bodies), part)
                yield self._open.open()
            case CallArguments(text):
                assert isinstance(self._open, OutputCallItem)  # arguments follow a `CallStart`
                yield self._open.add(text)
            case CallEnd():
                yield from self.close("completed")
            case _:
                yield from self._add_text(part.text, reasoning=isinstance(part, Reasoning))

    def close(self, status: str) -> Iterator[JsonObject]:
        """End the open item, if there is one, with a status, and yield its events."""
        if self._open is not None:
            yield from self._open.close(status)
            self.bodies.append(self._open.body(status))
            self._open = None

    def _add_text(self, text: str, *, reasoning: bool) -> Iterator[JsonObject]:
        item = self._open
        if not isinstance(item, OutputTextItem) or item.reasoning != reasoning:
            yield from self.close("completed")
            item = OutputTextItem(len(self.bodies), reasoning=reasoning, encoded=self._encoded)
            self._open = item
            yield from item.open()
        yield item.add(text)


class OutputCallItem:
    """An item of a function call, while its arguments are generated."""

    def __init__(self, output_index: int, call: CallStart) -> None:
        """Begin an item, with its index in the output."""
        self._output_index = output_index
        self._id = f"fc_{token_hex(12)}"
        self._call = call
        self._arguments = ""

    def body(self, status: str) -> JsonObject:
        """Return the item with its arguments so far."""
        return {
            "id": self._id,
            "type": "function_call",
            "status": status,
            "call_id": self._call.id,
            "name": self._call.name,
            "arguments": self._arguments,
        }

    def open(self) -> JsonObject:
        """Return the event of the item's beginning."""
        return _event("output_item.added", self._output_index, item=self.body("in_progress"))

    def add(self, text: str) -> JsonObject:
        """Add a piece of the arguments, and return its event."""
        self._arguments += text
        kind = "function_call_arguments.delta"
        return _event(kind, self._output_index, item_id=self._id, delta=text)

    def close(self, status: str) -> Iterator[JsonObject]:
        """Yield the events of the item's end."""
        index = self._output_index
        end = {"item_id": self._id, "name": self._call.name, "arguments": self._arguments}
        yield _event("function_call_arguments.done", index, **end)
        yield _event("output_item.done", index, item=self.body(status))


class OutputTextItem:
    """An item of reasoning or text, while it is generated.

    Attributes:
        reasoning: True for reasoning, False for text of the answer.
        text: the text so far.
    """

    def __init__(self, output_index: int, *, reasoning: bool, encoded: bool) -> None:
        """Begin an item, with its index in the output.

        With `encoded`, an item of reasoning has `encrypted_content`.
        """
        self.reasoning = reasoning
        self.text = ""
        self._output_index = output_index
        self._kind = "reasoning_text" if reasoning else "output_text"
        self._id = f"{'rs' if reasoning else 'msg'}_{token_hex(12)}"
        self._location = {"item_id": self._id, "content_index": 0}
        self._logprobs: JsonObject = {} if reasoning else {"logprobs": []}
        self._encoded = encoded

    def body(self, status: str) -> JsonObject:
        """Return the item. With the status "in_progress" the content is still empty."""
        begun = status == "in_progress"
        content = [] if begun else [self._part]
        item: JsonObject = {"id": self._id, "status": status, "content": content}
        if not self.reasoning:
            return {**item, "type": "message", "role": "assistant"}
        encoded = encoded_reasoning(self.text) if self._encoded and not begun else None
        return {**item, "type": "reasoning", "summary": [], "encrypted_content": encoded}

    def open(self) -> Iterator[JsonObject]:
        """Yield the events of the item's beginning."""
        index = self._output_index
        yield _event("output_item.added", index, item=self.body("in_progress"))
        yield _event("content_part.added", index, **self._location, part=self._part)

    def add(self, text: str) -> JsonObject:
        """Add text, and return its event."""
        self.text += text
        fields = {**self._location, **self._logprobs, "delta": text}
        return _event(f"{self._kind}.delta", self._output_index, **fields)

    def close(self, status: str) -> Iterator[JsonObject]:
        """Yield the events of the item's end."""
        index = self._output_index
        end = {**self._location, **self._logprobs, "text": self.text}
        yield _event(f"{self._kind}.done", index, **end)
        yield _event("content_part.done", index, **self._location, part=self._part)
        yield _event("output_item.done", index, item=self.body(status))

    @property
    def _part(self) -> JsonObject:
        part: JsonObject = {"type": self._kind, "text": self.text}
        return part if self.reasoning else {**part, "annotations": [], "logprobs": []}


def _event(kind: str, output_index: int, **fields: object) -> JsonObject:
    return {"type": f"response.{kind}", "output_index": output_index, **fields}
