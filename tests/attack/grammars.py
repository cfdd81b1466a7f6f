"""A seeded generator of hostile grammars: deep, wide and exponential schemas, regexes and Lark."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

from tinyllm_engine import Grammar

Schema = dict[str, object]
Make = Callable[[random.Random], Grammar]

TEXT: Schema = {"type": "string"}
SIZES = [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000]


def size(rng: random.Random, most: int = SIZES[-1]) -> int:
    """Return a size, small ones as often as large ones."""
    return rng.choice([each for each in SIZES if each <= most])


def leaf(rng: random.Random) -> Schema:
    """Return a schema without further schemas."""
    n = size(rng)
    return rng.choice(
        [
            TEXT,
            {"type": "string", "minLength": n, "maxLength": n * rng.choice([1, 100])},
            {"type": "string", "pattern": pattern(rng, 3)},
            {"type": "string", "format": rng.choice(["date-time", "email", "uuid", "uri"])},
            {"type": "integer", "multipleOf": rng.choice([n, 9973, 99_991, 10**9])},
            {"type": "number", "minimum": -n / 7, "maximum": 10.0 ** rng.randrange(300)},
            {"enum": [f"{i * 7919 % n}-{i}" for i in range(n)]},
            {"const": "x" * n},
            {"type": "array", "items": TEXT, "minItems": n, "maxItems": 2 * n},
        ]
    )


def pattern(rng: random.Random, depth: int) -> str:
    """Return a regular expression."""
    if depth == 0:
        return rng.choice(["a", ".", "[a-z]", r"\w", r"\p{L}", "[^a]", "", "ab", "é", r"\d"])
    parts = [pattern(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    n = size(rng, 1_000)
    return rng.choice(
        [
            "".join(parts),
            f"({'|'.join(parts)})",
            f"({parts[0]})*",
            f"({parts[0]}){{{n}}}",
            f"({parts[0]}){{0,{n}}}",
            f".*{parts[0]}.{{{n}}}",
            "(" * n + parts[0] + ")" * n,
            "|".join(f"{parts[0]}{i}" for i in range(n)),
        ]
    )


def deep(rng: random.Random) -> Grammar:
    """Return a schema of many levels."""
    schema = leaf(rng)
    for index in range(size(rng, 300)):
        kind = rng.choice(["properties", "items", "anyOf", "allOf"])
        if kind == "properties":
            schema = {"type": "object", "properties": {f"p{index}": schema, "q": TEXT}}
        elif kind == "items":
            schema = {"type": "array", "items": schema}
        else:
            schema = {kind: [schema, leaf(rng)]}
    return Grammar.json_schema(schema)


def wide(rng: random.Random) -> Grammar:
    """Return an object, or a choice, of many schemas."""
    n, one = size(rng), leaf(rng)
    schema: Schema = {"type": "object", "additionalProperties": rng.choice([True, False])}
    match rng.choice(["properties", "patternProperties", "anyOf", "oneOf"]):
        case "properties":
            schema["properties"] = {f"property_{i}": one for i in range(n)}
            schema["required"] = [f"property_{i}" for i in range(rng.choice([0, n // 2, n]))]
        case "patternProperties":
            schema["patternProperties"] = {f"^{i}{pattern(rng, 1)}": one for i in range(n)}
        case key:
            schema = {key: [{"type": "object", "properties": {f"k{i}": one}} for i in range(n)]}
    return Grammar.json_schema(schema)


def exponential(rng: random.Random) -> Grammar:
    """Return a schema whose references or intersections double at each step."""
    n = size(rng, 30)
    if rng.random() < 0.5:
        halves = [
            {"anyOf": [{"properties": {f"{side}{i}": TEXT}, "type": "object"} for side in "ab"]}
            for i in range(n)
        ]
        return Grammar.json_schema({"allOf": halves})
    key = rng.choice(["anyOf", "allOf", "oneOf"])
    definitions: Schema = {
        f"d{i}": {
            key: [
                {"$ref": f"#/$defs/d{i + 1}"},
                {"properties": {f"k{i}": TEXT}, "allOf": [{"$ref": f"#/$defs/d{i + 1}"}]},
            ]
        }
        for i in range(n)
    }
    return Grammar.json_schema({"$ref": "#/$defs/d0", "$defs": definitions | {f"d{n}": TEXT}})


def chain(rng: random.Random) -> Grammar:
    """Return references that form a long chain: of definitions, rules, or terminals."""
    n = size(rng)
    match rng.choice(["schema", "rules", "terminals"]):
        case "schema":
            definitions: Schema = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(n)}
            last: Schema = {f"d{n}": TEXT}
            return Grammar.json_schema({"$ref": "#/$defs/d0", "$defs": definitions | last})
        case "rules":
            rules = [f'r{i}: r{i + 1} "a"' for i in range(n)]
            return Grammar.lark("\n".join(["start: r0", *rules, f'r{n}: "b"']))
        case _:
            rules = [f'T{i}: T{i + 1} "a"' for i in range(n)]
            return Grammar.lark("\n".join(["start: T0", *rules, f'T{n}: "b"']))


def regex(rng: random.Random) -> Grammar:
    """Return a regular expression."""
    return Grammar.regex(pattern(rng, rng.randrange(1, 5)) or "a")


def lark(rng: random.Random) -> Grammar:
    """Return ambiguous or large rules."""
    n = size(rng, 3_000)
    patterns = [f"/{pattern(rng, 1).replace('/', '') or 'a'}/" for _ in range(3)]
    return Grammar.lark(
        rng.choice(
            [
                f"start: s\ns: s s | {' | '.join(patterns)} |",
                f"start: A\nA: {' & '.join(patterns)}",
                f"start: A\nA: ~{patterns[0]} & /(?s:.*)a.{{{n}}}/",
                f"start: ({' | '.join(f'/[a-z]*{c}[a-z]{{{n}}}/' for c in 'abcdefgh')})*",
                f"start: a{{{n}}}\na: b{{0,{n}}}\nb: {patterns[0]}",
                "start: " + " ".join(f'"x{i}"?' for i in range(n)),
                "start: " + " ".join(f"%json {json.dumps(leaf(rng))}" for _ in range(n // 10 + 1)),
                "start: " + "(" * n + '"a"' + ")" * n,
            ]
        )
    )


MAKERS: list[Make] = [deep, wide, exponential, chain, regex, lark]


def grammars(seed: int, count: int) -> Iterator[Grammar]:
    """Yield hostile grammars, each kind in turn."""
    rng = random.Random(seed)
    for index in range(count):
        yield MAKERS[index % len(MAKERS)](rng)
