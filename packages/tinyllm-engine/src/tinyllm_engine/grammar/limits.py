"""Limits on grammars, so that no grammar of a client takes much time or memory."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from math import lcm

from llguidance import LLParserLimits

from tinyllm_engine.grammar.grammar import Grammar

MAX_BYTES = 1 << 18
"""The most bytes of a grammar's text, and of all parts of a union together.

A text of this size compiles in 3 s, and its compiled form has at most 100 MB.
"""

MAX_REGEX_BYTES = 1 << 16
"""The most bytes of a regular expression."""

MAX_DEPTH = 64
"""The most levels of a JSON schema. llguidance refuses schemas of more than 127 levels."""

MAX_PROPERTIES = 1_000
"""The most properties of one object. Time grows with the square: 5,000 take 5 s, 1,000 0.2 s."""

MAX_SCHEMAS = 256
"""The most JSON schemas within Lark rules. Each has its own lexer: 1,000 take 2 s."""

MAX_LINES = 3_000
"""The most lines of Lark rules. A chain of 3,000 terminals compiles in 0.1 s, one of 10,000 in
minutes."""

MAX_PATTERNS = 32
"""The most `patternProperties` of one object. llguidance compares each with each other."""

MAX_MULTIPLE = 10_000
"""The largest least common multiple of all `multipleOf` of a schema, without decimal points.

llguidance makes a state for each remainder. 10,000 take 0.1 s, and 100,000,000 do not end.
"""

MATCHER_LIMITS = LLParserLimits(
    # One item for each property that may come next. The default of 2,000 is too few for an object
    # of 1,000 optional properties.
    max_items_in_row=8_000,
    # Items of one mask, about 5 a microsecond. 500 optional properties need 160,000; the default of
    # 50,000 allows 300.
    step_max_items=200_000,
    # States of the lexer, about 1 kB each. Requests with one compiled grammar share them: see
    # `constraint.Lexer`.
    max_lexer_states=20_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    max_grammar_size=500_000,
    # Messages must not quote the text of a conversation.
    verbose_errors=False,
)
"""The limits within llguidance."""

_MAX_FIELDS = (MAX_PROPERTIES, MAX_PATTERNS)
_EMBEDDED = re.compile(r"%json\s*")


def check(grammar: Grammar) -> None:
    """Check a grammar before it is compiled.

    Raises:
        ValueError: if the grammar exceeds a limit, or its text is not JSON where it must be.
    """
    parts = grammar.parts or (grammar,)
    _at_most(sum(len(part.text.encode()) for part in parts), MAX_BYTES, "bytes", "shorten it")
    for part in parts:
        match part.kind:
            case "regex":
                size = len(part.text.encode())
                _at_most(size, MAX_REGEX_BYTES, "bytes of a regex", "shorten it")
            case "json_schema":
                _check_schemas([_parsed(part.text, 0)])
            case "lark":
                _at_most(part.text.count("\n"), MAX_LINES, "lines of Lark", "shorten it")
                schemas = list(embedded_schemas(part.text))
                _at_most(len(schemas), MAX_SCHEMAS, "JSON schemas", "use fewer")
                _check_schemas(schemas)


def embedded_schemas(text: str) -> Iterator[object]:
    """Yield the JSON schemas of Lark rules.

    Without JSON after it, `%json` is part of a string or a comment, or llguidance refuses it.
    """
    for at in _EMBEDDED.finditer(text):
        with suppress(json.JSONDecodeError):
            yield _parsed(text, at.end())


def _parsed(text: str, start: int) -> object:
    """Parse the JSON value at a position of a text."""
    try:
        value: object = json.JSONDecoder().raw_decode(text, start)[0]
    except RecursionError:
        raise ValueError(f"expected at most {MAX_DEPTH} levels: flatten it") from None
    return value


def _check_schemas(schemas: list[object]) -> None:
    multiples: list[Decimal] = []
    for value, depth in _walk(schemas):
        _at_most(depth, MAX_DEPTH, "levels", "flatten it")
        if not isinstance(value, dict):
            continue
        sizes = {name: value.get(name) for name in ("properties", "patternProperties")}
        for (name, fields), limit in zip(sizes.items(), _MAX_FIELDS, strict=True):
            if isinstance(fields, dict):
                _at_most(len(fields), limit, f"{name} of an object", "use several objects")
        multiple = value.get("multipleOf")
        if isinstance(multiple, int | float) and not isinstance(multiple, bool):
            multiples.append(Decimal(str(multiple)))
    _check_multiples(multiples)


def _check_multiples(multiples: list[Decimal]) -> None:
    tuples = [each.as_tuple() for each in multiples if each.is_finite()]
    exponents = [int(each.exponent) for each in tuples]
    least = min([0, *exponents])
    common = 1
    for each, exponent in zip(tuples, exponents, strict=True):
        coefficient = int("".join(map(str, each.digits))) or 1
        common = lcm(common, coefficient * 10 ** (exponent - least))
        _at_most(common, MAX_MULTIPLE, "as the common multiple of multipleOf", "use smaller ones")


def _walk(values: list[object]) -> Iterator[tuple[object, int]]:
    """Yield all values within JSON values, with their depth, without recursion."""
    waiting = [(value, 1) for value in values]
    while waiting:
        value, depth = waiting.pop()
        yield value, depth
        if isinstance(value, dict):
            waiting += [(each, depth + 1) for each in value.values()]
        elif isinstance(value, list):
            waiting += [(each, depth + 1) for each in value]


def _at_most(size: int, limit: int, unit: str, remedy: str) -> None:
    if size > limit:
        raise ValueError(f"expected at most {limit:,} {unit}, got {size:,}: {remedy}")
