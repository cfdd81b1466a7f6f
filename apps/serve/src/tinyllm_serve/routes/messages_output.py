"""The content blocks of POST /v1/messages, and the events that announce them."""

from collections.abc import Iterator

from pydantic_core import from_json

from tinyllm_serve.generation.parts import CallArguments, CallEnd, CallStart, Part, Reasoning
from tinyllm_serve.http.json_text import JsonObject, json_bytes

_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""For each type of block, the type of its deltas and the field with their text."""


class ContentBlocks:
    """The blocks of an answer: reasoning, texts and tool calls, in their order.

    Attributes:
        bodies: the blocks that have ended.
    """

    def __init__(self) -> None:
        """Start an answer."""
        self.bodies: list[JsonObject] = []
        self._open: JsonObject | None = None
        self._texts: list[str] = []  # of the open block

    def add(self, part: Part) -> Iterator[JsonObject]:
        """Add a part of the answer, and yield its events."""
        match part:
            case CallStart(name, identity):
                yield from self._start({"type": "tool_use", "id": identity, "name": name})
            case CallArguments(text):
                yield self._delta(text)  # arguments follow a `CallStart`
            case CallEnd():
                yield from self.close()
            case _:
                kind = "thinking" if isinstance(part, Reasoning) else "text"
                if self._open is None or self._open["type"] != kind:
                    yield from self._start({"type": kind})
                yield self._delta(part.text)

    def close(self) -> Iterator[JsonObject]:
        """End the open block, if there is one, and yield its events."""
        block = self._open
        if block is None:
            return
        index, text = len(self.bodies), "".join(self._texts)
        if block["type"] == "thinking":
            # Clients expect a signature, and send it back. Nothing is signed here.
            yield _event("delta", index, delta={"type": "signature_delta", "signature": ""})
        yield _event("stop", index)
        self.bodies.append(_with_content(block, text))
        self._open = None

    def _start(self, block: JsonObject) -> Iterator[JsonObject]:
        yield from self.close()
        self._open, self._texts = block, []
        yield _event("start", len(self.bodies), content_block=_with_content(block, ""))

    def _delta(self, text: str) -> JsonObject:
        assert self._open is not None
        self._texts.append(text)
        kind, field = _DELTAS[str(self._open["type"])]
        return _event("delta", len(self.bodies), delta={"type": kind, field: text})


def _with_content(block: JsonObject, text: str) -> JsonObject:
    """Return a block with the text that its deltas add up to."""
    match block["type"]:
        case "tool_use":
            return {**block, "input": _input(text)}
        case "thinking":
            return {**block, "thinking": text, "signature": ""}
    return {**block, "text": text}


def _input(arguments: str) -> JsonObject:
    """Return the arguments of a call as an object.

    Incomplete arguments become the fields that are complete, as in the official client. Other
    arguments that are no JSON, or have a number beyond float64, are one field, `arguments`, because
    the input must be an object.
    """
    try:
        value = from_json(arguments or "{}", allow_inf_nan=False, allow_partial=True)
        json_bytes(value)  # raises for 1e999, which is read as infinity
    except ValueError:
        return {"arguments": arguments}
    return value if isinstance(value, dict) else {"arguments": arguments}


def _event(kind: str, index: int, **fields: object) -> JsonObject:
    return {"type": f"content_block_{kind}", "index": index, **fields}
