"""What a text must conform to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Grammar:
    """A language; a request with one is answered in it.

    Attributes:
        kind: how `text` describes it.
        text: a JSON schema, a regular expression, or a grammar in llguidance's dialect of Lark.
        after: text that comes before it, unconstrained, such as "</think>"; None if it begins at
            once.
    """

    kind: Literal["json_schema", "regex", "lark"]
    text: str
    after: str | None = None

    @classmethod
    def json_schema(cls, schema: Mapping[str, object] | str, after: str | None = None) -> Grammar:
        """JSON that a schema describes."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return cls("json_schema", text, after)

    @classmethod
    def json_object(cls, after: str | None = None) -> Grammar:
        """Any JSON object."""
        return cls.json_schema({"type": "object"}, after)

    @classmethod
    def regex(cls, pattern: str, after: str | None = None) -> Grammar:
        """Text that a regular expression matches as a whole."""
        return cls("regex", pattern, after)

    @classmethod
    def lark(cls, rules: str, after: str | None = None) -> Grammar:
        """Text of a context-free grammar."""
        return cls("lark", rules, after)
