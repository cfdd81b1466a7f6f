"""JSON of responses and events."""

import json
from collections.abc import Iterable, Mapping, Sequence

from fastapi.responses import JSONResponse

JsonObject = dict[str, object]

ITEMS_AT_ONCE = 1000
"""Items that `list_json` encodes at a time, in about 5 ms."""


def json_bytes(value: object) -> bytes:
    r"""Return a value as JSON in UTF-8.

    A string of a request may have a lone surrogate, which UTF-8 cannot express. Python's escape
    sequence for it, such as \ud800, is also that of JSON.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")


def with_choices(fields: Mapping[str, object], choices: Iterable[bytes]) -> bytes:
    """Return an object with choices, which are JSON already.

    An encoder keeps Python's lock until it has finished. Choices that are encoded one by one, in a
    thread, let the event loop run between them.
    """
    return b'%s,"choices":[%s]}' % (json_bytes(fields)[:-1], b",".join(choices))


def list_json(items: Sequence[object]) -> bytes:
    """Return a long list as JSON, encoded in parts, for the reason that `with_choices` has."""
    starts = range(0, len(items), ITEMS_AT_ONCE)
    parts = (json_bytes(items[start : start + ITEMS_AT_ONCE])[1:-1] for start in starts)
    return b"[%s]" % b",".join(parts)


class JsonText(JSONResponse):
    """A JSON response whose strings may have lone surrogates."""

    def render(self, content: object) -> bytes:
        """Return the body."""
        return json_bytes(content)
