"""Random changes to a file, which keep most of its structure."""

import json
import random
import struct

# Fragments that replace a part of a file: JSON values, and pieces of jinja2.
_FRAGMENTS = [
    *(b"null", b"true", b"-1", b"0", b"1e400", b"-1e400", b"NaN", b"Infinity", b"1000000000"),
    *(b"18446744073709551616", b"2147483648", b"9" * 5000, b'""', b'"\\ud800"', b'"\\u0000"'),
    *(b"[]", b"{}", b"[" * 2000, b'{"a":' * 2000, b"[[[]]]", b'"a', b"}", b",", b":", b"\xff"),
    *(b'"rope_scaling":', b'"yarn"'),
    *(b'"dtype":"U8"', b'"shape":[0]', b'"data_offsets":[0,0]', b'"__metadata__":{}'),
    *(b"{{ ", b" }}", b"{% for x in messages %}", b"{% endfor %}", b" | tojson", b"messages"),
    *(b" * 99999999", b"range(99999)", b".__class__", b"namespace(x=1)", b" ~ ", b"'ab'"),
    *(b" | join", b" | format", b"%1000000d", b".split()", b" | map(attribute='x')", b"9**9"),
]
_PREFIX = struct.Struct("<Q")


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Replace, double, move or remove one to four byte ranges, and cut one file in ten short."""
    for _ in range(draw.randint(1, 4)):
        first = draw.randint(0, len(data))
        last = min(first + draw.choice([0, 1, 1, 2, 4, 20, 200]), len(data))
        at = draw.randint(0, len(data))
        new = draw.choice(
            [
                *(draw.choice(_FRAGMENTS), draw.randbytes(2), data[first:last] * 2),
                *(b"", data[at : at + 40], bytes([draw.randint(32, 126)])),
            ]
        )
        data = data[:first] + new + data[last:]
    return data[: draw.randint(0, len(data))] if draw.random() < 0.1 else data


def swapped(document: dict[str, object], draw: random.Random) -> bytes:
    """Replace the value of one field of a JSON object. The result usually is valid JSON."""
    name = draw.choice(sorted(document))
    rest = {other: value for other, value in document.items() if other != name}
    field = json.dumps(name).encode() + b": " + draw.choice(_FRAGMENTS)
    return b"{" + field + b", " + json.dumps(rest).encode()[1:]


def mutated_safetensors(data: bytes, draw: random.Random) -> bytes:
    """Change a safetensors file. In most files, the length of the header stays correct."""
    if len(data) < _PREFIX.size or draw.random() < 0.1:
        return mutated(data, draw)
    end = _PREFIX.size + _PREFIX.unpack_from(data)[0]
    header = mutated(data[_PREFIX.size : end], draw)
    body = mutated(data[end:], draw) if draw.random() < 0.2 else data[end:]
    return _PREFIX.pack(len(header)) + header + body


def mutation(data: bytes, draw: random.Random, target: str) -> bytes:
    """Change a file of the corpus of a target."""
    if target in ("weights", "prefixes"):
        return mutated_safetensors(data, draw)
    document = _json_object(data)
    if document and draw.random() < 0.5:
        return swapped(document, draw)
    return mutated(data, draw)


def _json_object(data: bytes) -> dict[str, object]:
    """Return the JSON object of a file; an empty one if the file is of another kind."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
