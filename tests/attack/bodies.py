"""Request bodies that cost a server much more than their sender."""

import json

BODY = 9_900_000
"""Bytes of the largest bodies. The default of --max-body is 10,000,000."""

QUESTION = [{"role": "user", "content": "what does rmsnorm do?"}]


def as_json(**fields: object) -> bytes:
    """Return the fields as a JSON object."""
    return json.dumps(fields).encode()


def repeated(before: str, item: str, after: str, size: int = BODY) -> bytes:
    """Return a list of equal items between two texts, of `size` bytes in all."""
    count = (size - len(before) - len(after)) // (len(item) + 1)
    return (before + ",".join([item] * count) + after).encode()


def long_text(before: str, after: str) -> bytes:
    """Return one long text between two other texts."""
    return (before + "word " * (BODY // 5 - 20) + after).encode()


def unknown_fields() -> bytes:
    """Return a chat request with a million fields that do not exist."""
    return chat(**{f"f{i}": 1 for i in range(BODY // 14)})


def open_blocks() -> bytes:
    """Return a request of /v1/messages whose blocks have fields that do not exist."""
    blocks = [
        {"type": "text", "text": "", **{f"f{i}-{j}": "a" * 40 for j in range(6)}}
        for i in range(10_000)
    ]
    turn = {"role": "user", "content": blocks}
    return as_json(model="pico", max_tokens=1, messages=[turn])


def chat(**fields: object) -> bytes:
    """Return a chat request with these fields."""
    return as_json(**{"messages": QUESTION, "max_tokens": 8, **fields})


def with_schema(schema: object, **fields: object) -> bytes:
    """Return a chat request whose answer must conform to a schema."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return chat(response_format=form, **fields)


def with_grammar(**grammar: str) -> bytes:
    """Return a chat request whose answer must conform to a regex or a Lark grammar."""
    return chat(structured_outputs=grammar)


def reference_chain(length: int) -> dict[str, object]:
    """Return a schema whose definitions refer to each other in a chain."""
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
    return {"$defs": {**chain, f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def properties(count: int, kind: str = "string", first: int = 0) -> dict[str, object]:
    """Return a schema with optional properties."""
    named = {f"p{i}": {"type": kind} for i in range(first, first + count)}
    return {"type": "object", "properties": named, "additionalProperties": False}


def lark_rules(count: int) -> str:
    """Return a Lark grammar whose rules nest."""
    rules = [f'r{i}: "a" r{i + 1}' for i in range(count)]
    return "\n".join(["start: r0", *rules, f'r{count}: "b"'])


def lark_terminals(count: int) -> str:
    """Return a Lark grammar whose terminals nest."""
    terminals = [f'T{i}: "a" T{i + 1}' for i in range(count)]
    return "\n".join(["start: T0", *terminals, f'T{count}: "b"'])


def nested(depth: int) -> str:
    """Return JSON objects in each other."""
    return '{"a":' * depth + "1" + "}" * depth


def nested_tool(depth: int) -> bytes:
    """Return a chat request with a tool whose schema nests."""
    tool = '{"type":"function","function":{"name":"f","parameters":' + nested(depth) + "}}"
    return chat(tools=["TOOL"]).replace(b'"TOOL"', tool.encode())


def many_choices(prompts: int = 16, **fields: object) -> bytes:
    """Return a completion request with 16 choices for each of some prompts."""
    texts = [f"prompt {i}: " + "what is a residual? " * 20 for i in range(prompts)]
    return as_json(**{"prompt": texts, "n": 16, "max_tokens": 100, "ignore_eos": True, **fields})


def many_stops(prompts: int = 16) -> bytes:
    """Return a completion request with 16 long stop strings for each of 256 choices."""
    return many_choices(prompts, stop=[chr(97 + i) + "ab" * 499 for i in range(16)], max_tokens=2)


def embeddings(texts: int = 60, sentences: int = 40) -> bytes:
    """Return a request for embeddings of texts with some sentences."""
    return as_json(input=["attention is a weighted mean of values. " * sentences] * texts)
