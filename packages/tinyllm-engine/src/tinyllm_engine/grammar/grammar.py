"""Descriptions of grammars: the texts that an answer may have."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Grammar:
    """A formal language that the answer to a request must belong to.

    Attributes:
        kind: the format of `text`. A "union" allows the texts of each grammar in `parts`.
        text: a JSON schema, a regular expression, or a grammar in llguidance's dialect of Lark;
            empty for a union.
        after: the end mark of an unconstrained prefix of the answer, such as "</think>"; None if
            the grammar applies from the start.
        opening: the text with which that prefix must start, such as "<think>"; "" for any text.
        name: the name for error messages, such as the request field that holds the grammar.
        parts: the grammars of a union. No part has `after` or `parts`.
        rule_names: names for error messages of Lark rules, as pairs of a rule and its name. A name
            also stands for rules that begin with the rule and an underscore. A JSON schema that is
            not valid is reported by the name of its rule.
    """

    kind: Literal["json_schema", "regex", "lark", "union"]
    text: str
    after: str | None = None
    opening: str = ""
    name: str = "grammar"
    parts: "tuple[Grammar, ...]" = ()
    rule_names: tuple[tuple[str, str], ...] = ()

    @classmethod
    def json_schema(cls, schema: Mapping[str, object] | str, after: str | None = None) -> "Grammar":
        """Make a grammar that allows the JSON texts of a schema."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return cls("json_schema", text, after)

    @classmethod
    def json_object(cls, after: str | None = None) -> "Grammar":
        """Make a grammar that allows any JSON object."""
        return cls.json_schema({"type": "object"}, after)

    @classmethod
    def regex(cls, pattern: str, after: str | None = None) -> "Grammar":
        """Make a grammar that allows the texts that a regular expression matches in full."""
        return cls("regex", pattern, after)

    @classmethod
    def lark(cls, rules: str, after: str | None = None) -> "Grammar":
        """Make a grammar from rules of llguidance's Lark dialect."""
        return cls("lark", rules, after)

    @classmethod
    def choice(cls, texts: Sequence[str], after: str | None = None) -> "Grammar":
        """Make a grammar that allows each of the given texts. No text may be empty.

        Raises:
            ValueError: if there are no texts, or one of them is empty.
        """
        if not texts:
            raise ValueError("texts: expected at least one, got none")
        if not all(texts):
            raise ValueError("texts: expected no empty text, got one: use another grammar")
        return cls.lark(f"start: {' | '.join(map(json.dumps, texts))}", after)

    @classmethod
    def union(cls, *parts: "Grammar", after: str | None = None) -> "Grammar":
        """Make a grammar that allows the texts of each of several grammars.

        Raises:
            ValueError: if there are no grammars, or one of them has a prefix or is itself a union.
        """
        if not parts or any(part.parts or part.after for part in parts):
            raise ValueError(
                "parts: expected one or more grammars without `after` and `parts`, got "
                f"{len(parts)} grammars, {sum(bool(p.parts or p.after) for p in parts)} of them "
                "with `after` or `parts`"
            )
        return cls("union", "", after, parts=parts)
