"""Valid requests of all endpoints, and mutations of them."""

import copy
import json
import random
from dataclasses import dataclass

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": True,
    },
}
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "what is a norm?"}], "name": "me"},
    {"role": "assistant", "content": "a length", "reasoning_content": "hm"},
    {"role": "user", "content": "why?"},
]
TOOL_TURNS = [
    {"role": "user", "content": "what is a norm?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]},
            {"type": "text", "text": "why?"},
        ],
    },
]
"""Messages in Anthropic's form. The template of pico refuses them, because it has no tools."""

SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {"5": 1.0},
    "seed": 3,
    "stop": ["###"],
    "n": 2,
    "max_tokens": 4,
    "user": "me",
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1, "a", None]}}}

SEEDS: list[tuple[str, dict[str, object]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES, **SAMPLING, "logprobs": True}),
    (
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 4, "stream": True, "stream_options": {}},
    ),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 8, "response_format": FORMAT}),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4, "tools": [TOOL]}),
    (
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 8, "structured_outputs": {"regex": "(yes|no)+"}},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": MESSAGES,
            "max_tokens": 8,
            "structured_outputs": {"grammar": 'start: WORD+\nWORD: /[a-z]+/ " "'},
        },
    ),
    ("/v1/completions", {"prompt": ["a norm is", "rope"], **SAMPLING, "logprobs": 2}),
    ("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 4, "stream": True, "echo": True}),
    (
        "/v1/responses",
        {
            "input": [
                {"type": "message", "role": "user", "content": "what is a norm?"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "a length"}]},
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
                {"role": "user", "content": [{"type": "input_text", "text": "why?"}]},
            ],
            "instructions": "be brief",
            "max_output_tokens": 4,
            "metadata": {"a": "b"},
            "text": {"format": {"type": "text"}},
            "stream": True,
        },
    ),
    ("/v1/responses", {"input": "why?", "max_output_tokens": 4, "temperature": 0.0}),
    ("/v1/responses/input_tokens", {"input": "why?", "tools": [{"type": "web_search"}]}),
    (
        "/v1/messages",
        {
            "model": "pico",
            "max_tokens": 4,
            "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "a"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "what is a norm?"}]},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]},
                {"role": "user", "content": "why?"},
            ],
            "stop_sequences": ["###"],
            "stream": True,
            "thinking": {"type": "adaptive"},
            "metadata": {"user_id": "me"},
            "context_management": {"edits": []},
            "tools": [{"type": "web_search_20250305", "name": "web_search"}],
        },
    ),
    ("/v1/messages/count_tokens", {"model": "pico", "messages": TOOL_TURNS}),
    ("/v1/embeddings", {"input": ["a norm", "rope"], "encoding_format": "base64"}),
    ("/v1/embeddings", {"input": [[5, 6], [7]]}),
    ("/tokenize", {"prompt": "a norm is"}),
    ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": False}}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
]
ENDPOINTS = sorted({path for path, _ in SEEDS})

VALUES: list[object] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 2**64, 10**30, 0.5, -0.0, 1e308, 1e-320,
    "", "a", "\x00", "\ud800", "\u202e", "<|im_end|>", "<think>", "</tool_call>", "a" * 5000,
    "é́" * 300, "1" * 4400, "{{ 7 * 7 }}", "../../etc/passwd", "(a+)+$", "start: start",
    [], [[]], [{}], {}, {"": ""}, {"self": 1}, {"$ref": "#"}, {"__class__": 1}, [0] * 3000,
    [""] * 2000, [None], {"type": "text"}, {"type": "function"}, {"allOf": [{"$ref": "#"}]},
]  # fmt: skip
"""Values that a field may get instead of its own."""


@dataclass(frozen=True)
class Mutated:
    """A mutated request."""

    path: str
    body: bytes


def mutate(draw: random.Random) -> Mutated:
    """Draw a valid request, and change one to three things of it."""
    path, seed = draw.choice(SEEDS)
    body: object = copy.deepcopy(seed)
    for _ in range(draw.randrange(1, 4)):
        body = change(draw, body)
    encoded = json.dumps(body).encode()
    if draw.random() < 0.1:
        encoded = damage(draw, encoded)
    if draw.random() < 0.05:
        path = draw.choice(ENDPOINTS)
    return Mutated(path, encoded)


def change(draw: random.Random, value: object) -> object:
    """Change a value, or a value inside of it."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        return change_object(draw, value)
    if isinstance(value, list) and value and draw.random() < 0.8:
        return change_list(draw, value)
    if isinstance(value, str) and draw.random() < 0.5:
        at = draw.randrange(len(value) + 1)
        return value[:at] + str(draw.choice(VALUES)) + value[at:]
    if isinstance(value, int | float) and draw.random() < 0.5:
        return value * draw.choice([-1, 2, 1000]) + draw.choice([-1, 0, 0.5])
    return wrap(draw, copy.deepcopy(draw.choice(VALUES)))


def change_list(draw: random.Random, value: list[object]) -> list[object]:
    """Change, remove or repeat an item."""
    at = draw.randrange(len(value))
    match draw.randrange(4):
        case 0:
            return value[:at] + value[at + 1 :]
        case 1:
            return value + [value[at]] * draw.choice([1, 20, 200])
        case _:
            return [*value[:at], change(draw, value[at]), *value[at + 1 :]]


def change_object(draw: random.Random, value: dict[str, object]) -> dict[str, object]:
    """Change, remove, rename or add a field."""
    name = draw.choice(list(value))
    match draw.randrange(8):
        case 0:
            return {key: item for key, item in value.items() if key != name}
        case 1:
            return {**value, draw.choice(["self", "", "messages", "a" * 500]): value[name]}
        case 2:
            return {**value, name: draw.choice(list(value.values()))}
        case _:
            return {**value, name: change(draw, value[name])}


def wrap(draw: random.Random, value: object) -> object:
    """Nest a value, sometimes a thousand deep."""
    if draw.random() < 0.9:
        return value
    as_list = draw.random() < 0.5
    for _ in range(draw.choice([1, 2, 100, 900])):
        value = [value] if as_list else {"properties": value}
    return value


def damage(draw: random.Random, body: bytes) -> bytes:
    """Change, remove or repeat some bytes."""
    at = draw.randrange(len(body))
    end = min(len(body), at + draw.choice([1, 2, 8, 100]))
    match draw.randrange(3):
        case 0:
            return body[:at] + draw.randbytes(end - at) + body[end:]
        case 1:
            return body[:at] + body[end:]
        case _:
            return body[:end] + body[at:]
