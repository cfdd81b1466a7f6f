"""What a text must conform to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Grammar:
    """A language; a request with one is answered in it.

    Attributes:
        kind: how `text` describes it; a union allows what any of `parts` does.
        text: a JSON schema, a regular expression, or a grammar in llguidance's dialect of Lark.
        after: text that comes before it, unconstrained, such as "</think>"; None if it begins at
            once.
        opening: how that text begins, such as "<think>"; "" if anything may.
        name: what errors call it, such as the field of a request that it came from.
        parts: of a union; nothing comes before them.
    """

    kind: Literal["json_schema", "regex", "lark", "union"]
    text: str
    after: str | None = None
    opening: str = ""
    name: str = "grammar"
    parts: tuple[Grammar, ...] = ()

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

    @classmethod
    def choice(cls, texts: Sequence[str], after: str | None = None) -> Grammar:
        """One of several texts, none of them empty."""
        return cls.lark(f"start: {' | '.join(map(json.dumps, texts))}", after)

    @classmethod
    def union(cls, *parts: Grammar, after: str | None = None) -> Grammar:
        """Text of any of several grammars.

        Raises:
            ValueError: if there is none, or one of them comes after something, or has parts itself.
        """
        if not parts or any(part.parts or part.after for part in parts):
            raise ValueError("parts: expected one or more, each alone and with nothing before it")
        return cls("union", "", after, parts=parts)
