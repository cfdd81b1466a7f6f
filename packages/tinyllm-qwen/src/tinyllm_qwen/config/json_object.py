"""A parser of JSON objects from untrusted files."""

import json
import re
from pathlib import Path

from tinyllm_qwen.config.fields import Fields
from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.regular_file import exists_or_broken_link, read_regular_file

MAX_BYTES = 100_000_000  # a config has some kilobytes, a large vocabulary 10 MB
# The number of values is limited too: a value of 2 bytes in a file needs about 100 in memory.
MAX_VALUES = 1_000_000
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json_object(data: bytes, source: str, max_values: int = MAX_VALUES) -> dict[str, object]:
    """Decode a JSON object (RFC 8259) in which no name occurs twice.

    NaN and Infinity are numbers here, as in Python's `json`. `Fields` refuses them.

    Args:
        data: UTF-8 text.
        source: the name of the data for error messages.
        max_values: the largest number of values, counted roughly, to limit the memory.

    Raises:
        CheckpointError: if the data is not a JSON object, repeats a name, or has too many values.
    """
    values = sum(map(data.count, (b",", b"[", b"{")))
    if values > max_values:
        raise CheckpointError(
            f"{source}: expected at most {max_values} values, got {values}: "
            "take the file of the original model"
        )
    try:
        value: object = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()  # fails on half a surrogate pair
    except RecursionError:
        raise CheckpointError(
            f"{source}: the JSON is nested too deeply: download it again"
        ) from None
    except UnicodeEncodeError:
        raise CheckpointError(
            f"{source}: a text has half of a surrogate pair, which is no character: download it "
            "again"
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{source} is not valid JSON ({error}): download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{source}: expected a JSON object, got {type(value).__name__}: download it again"
        )
    return value


def read_json_object(path: Path) -> dict[str, object]:
    """Read a file that holds one JSON object.

    Raises:
        CheckpointError: if the file is missing, unreadable, oversized or not a JSON object.
    """
    return parse_json_object(read_regular_file(path, MAX_BYTES), str(path))


def read_fields(path: Path) -> Fields:
    """Read the fields of a JSON object; no fields if the file does not exist.

    Raises:
        CheckpointError: as in `read_json_object`.
    """
    return Fields(read_json_object(path) if exists_or_broken_link(path) else {}, str(path))


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse an object in which a name occurs twice, because parsers choose different values."""
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the name {key[:80]!r} occurs twice")
            seen.add(key)
    return result
