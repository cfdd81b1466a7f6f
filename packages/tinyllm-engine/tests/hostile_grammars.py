"""A seeded generator of hostile grammars: deep, wide and exponential schemas, regexes and Lark.

Run it to compile some of them in one process, and to see the time of each:

    uv run python packages/tinyllm-engine/tests/hostile_grammars.py --count 240 --seed 1
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import psutil
from tinyllm_engine import Grammar, RequestError
from tinyllm_engine.grammar.compiler import GrammarCompiler
from tinyllm_engine.grammar.worker import GrammarWorker
from tinyllm_qwen import load

Schema = dict[str, object]
Make = Callable[[random.Random], Grammar]

TEXT: Schema = {"type": "string"}
MAX_CHARACTERS = 10_000_000
"""The most characters of a grammar, as in a body of a request."""
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
    """Yield hostile grammars of at most `MAX_CHARACTERS`, each kind in turn."""
    rng = random.Random(seed)
    for index in range(count):
        grammar = MAKERS[index % len(MAKERS)](rng)
        if len(grammar.text) <= MAX_CHARACTERS:
            yield grammar


def report(line: str) -> None:
    """Write a line to the standard output."""
    sys.stdout.write(f"{line}\n")


def main() -> None:
    """Compile grammars, and take some steps with each; print the processor time and the memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    tokenizer = load("pico")[1]
    worker = GrammarWorker(GrammarCompiler(tokenizer, tokenizer.vocab_size))
    rng = random.Random(arguments.seed)
    count = compiled = 0
    slowest = slowest_step = growth = 0.0
    for index, grammar in enumerate(grammars(arguments.seed, arguments.count)):
        count += 1
        before = megabytes()
        started = time.process_time()
        reason = ""
        try:
            constraint = worker.compile(grammar).constraint()
        except RequestError as error:
            reason = str(error)
        seconds = time.process_time() - started
        slowest = max(slowest, seconds)
        if not reason:
            compiled += 1
            for _ in range(arguments.steps):
                started = time.thread_time()
                (mask,) = constraint.masks([])
                slowest_step = max(slowest_step, time.thread_time() - started)
                if constraint.error is not None:
                    reason = constraint.error
                    break
                allowed = [int(token) for token in np.flatnonzero(np.array(mask))]
                token = rng.choice(allowed)
                constraint.consume([token])
                if token in tokenizer.eos_token_ids:
                    break
        growth = max(growth, megabytes() - before)
        if seconds > 0.5:
            report(f"{index}: {seconds:.2f} s: {grammar.kind} {grammar.text[:80]!r} {reason[:80]}")
    summary = {
        "grammars": count,
        "compiled": compiled,
        "slowest_seconds": round(slowest, 2),
        "slowest_mask_seconds": round(slowest_step, 3),
        "megabytes": round(growth),
    }
    report(json.dumps(summary))


def megabytes() -> float:
    """Return the memory of the process."""
    return psutil.Process().memory_info().rss / 2**20


if __name__ == "__main__":
    main()
