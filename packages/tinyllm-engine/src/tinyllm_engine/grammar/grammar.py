"""Descriptions of the language of an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Grammar:
    """The language in which a request is answered.

    Attributes:
        kind: the form of `text`; a union allows the texts of any of `parts`.
        text: a JSON schema, a regular expression, or a grammar in llguidance's dialect of Lark.
        after: the end of an unconstrained prefix, such as "</think>"; None if the grammar applies
            from the start.
        opening: the start of that prefix, such as "<think>"; "" if it may begin with any text.
        name: the name in error messages, such as the request field that holds the grammar.
        parts: the grammars of a union, without prefixes.
    """

    kind: Literal["json_schema", "regex", "lark", "union"]
    text: str
    after: str | None = None
    opening: str = ""
    name: str = "grammar"
    parts: tuple[Grammar, ...] = ()

    @classmethod
    def json_schema(cls, schema: Mapping[str, object] | str, after: str | None = None) -> Grammar:
        """Make a grammar of the JSON that a schema describes."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return cls("json_schema", text, after)

    @classmethod
    def json_object(cls, after: str | None = None) -> Grammar:
        """Make a grammar of any JSON object."""
        return cls.json_schema({"type": "object"}, after)

    @classmethod
    def regex(cls, pattern: str, after: str | None = None) -> Grammar:
        """Make a grammar of the texts that a regular expression matches as a whole."""
        return cls("regex", pattern, after)

    @classmethod
    def lark(cls, rules: str, after: str | None = None) -> Grammar:
        """Make a grammar from rules of llguidance's Lark dialect."""
        return cls("lark", rules, after)

    @classmethod
    def choice(cls, texts: Sequence[str], after: str | None = None) -> Grammar:
        """Make a grammar of several texts, none of them empty."""
        return cls.lark(f"start: {' | '.join(map(json.dumps, texts))}", after)

    @classmethod
    def union(cls, *parts: Grammar, after: str | None = None) -> Grammar:
        """Make a grammar of the texts of any of several grammars.

        Raises:
            ValueError: if there are no parts, or one of them has a prefix, or parts itself.
        """
        if not parts or any(part.parts or part.after for part in parts):
            raise ValueError(
                "parts: expected one or more grammars without `after` and `parts`, got "
                f"{len(parts)} grammars, {sum(bool(p.parts or p.after) for p in parts)} of them "
                "with `after` or `parts`"
            )
        return cls("union", "", after, parts=parts)
