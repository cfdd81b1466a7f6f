"""The output items of POST /v1/responses, and the events that announce them."""

from collections.abc import Iterator
from secrets import token_hex

from tinyllm_serve.generation.parts import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Part,
    Reasoning,
)
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
        self._open: JsonObject | None = None  # the open item, without its text
        self._texts: list[str] = []  # of the open item

    def add(self, part: Part) -> Iterator[JsonObject]:
        """Add a part of the answer, and yield its events."""
        kind = None if self._open is None else self._open["type"]
        match part:
            case CallStart(name, identity):
                call: JsonObject = {"type": "function_call", "call_id": identity, "name": name}
                yield from self._start("fc", call)
            case CallArguments(text):
                yield self._delta(text)  # arguments follow a `CallStart`
            case CallEnd():
                yield from self.close("completed")
            case Reasoning(text):
                if kind != "reasoning":
                    yield from self._start("rs", {"type": "reasoning"})
                yield self._delta(text)
            case Content(text):
                if kind != "message":
                    yield from self._start("msg", {"type": "message", "role": "assistant"})
                yield self._delta(text)

    def close(self, status: str) -> Iterator[JsonObject]:
        """End the open item, if there is one, with a status, and yield its events."""
        item = self._open
        if item is None:
            return
        index, text = len(self.bodies), "".join(self._texts)
        if item["type"] == "function_call":
            end = {"item_id": item["id"], "name": item["name"], "arguments": text}
            yield _event("function_call_arguments.done", index, **end)
        else:
            part, place = _part(item, text), {"item_id": item["id"], "content_index": 0}
            yield _event(f"{part['type']}.done", index, **place, **_logprobs(item), text=text)
            yield _event("content_part.done", index, **place, part=part)
        body = self._body(item, text, status)
        yield _event("output_item.done", index, item=body)
        self.bodies.append(body)
        self._open = None

    def _start(self, prefix: str, fields: JsonObject) -> Iterator[JsonObject]:
        """Begin an item, whose id has a prefix, and yield its events."""
        yield from self.close("completed")
        item: JsonObject = {"id": f"{prefix}_{token_hex(12)}", **fields}
        self._open, self._texts = item, []
        body, index = self._body(item, "", "in_progress"), len(self.bodies)
        yield _event("output_item.added", index, item=body)
        if item["type"] != "function_call":
            place = {"item_id": item["id"], "content_index": 0}
            yield _event("content_part.added", index, **place, part=_part(item, ""))

    def _delta(self, text: str) -> JsonObject:
        item, index = self._open, len(self.bodies)
        assert item is not None
        self._texts.append(text)
        fields = {"item_id": item["id"], "delta": text}
        if item["type"] == "function_call":
            return _event("function_call_arguments.delta", index, **fields)
        kind = _part(item, "")["type"]
        return _event(f"{kind}.delta", index, content_index=0, **_logprobs(item), **fields)

    def _body(self, item: JsonObject, text: str, status: str) -> JsonObject:
        """Return an item with its text. With the status "in_progress" the content is empty."""
        begun = status == "in_progress"
        match item["type"]:
            case "function_call":
                return {**item, "status": status, "arguments": text}
            case "reasoning":
                encoded = None if begun or not self._encoded else encoded_reasoning(text)
                item = {**item, "summary": [], "encrypted_content": encoded}
        return {**item, "status": status, "content": [] if begun else [_part(item, text)]}


def _part(item: JsonObject, text: str) -> JsonObject:
    """Return the content of an item of reasoning or text."""
    if item["type"] == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _logprobs(item: JsonObject) -> JsonObject:
    return {} if item["type"] == "reasoning" else {"logprobs": []}


def _event(kind: str, output_index: int, **fields: object) -> JsonObject:
    return {"type": f"response.{kind}", "output_index": output_index, **fields}
