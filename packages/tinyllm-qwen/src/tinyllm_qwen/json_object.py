"""JSON objects out of files that nobody has checked yet."""

import json
from pathlib import Path

from tinyllm_qwen.errors import CheckpointError

MAX_BYTES = 100_000_000  # a config has kilobytes, a large vocabulary ten megabytes


def parse_json_object(data: bytes, source: str) -> dict[str, object]:
    """Decode a JSON object (RFC 8259) in which no name occurs twice.

    Args:
        data: UTF-8 text.
        source: what to call the data in an error.

    Raises:
        CheckpointError: if the data is anything else.
    """
    try:
        value: object = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError:
        raise CheckpointError(f"{source}: the JSON is nested too deeply") from None
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
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise CheckpointError(f"{path}: expected at most {MAX_BYTES} bytes, got {size}")
        data = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing: is {path.parent} the folder of a checkpoint?"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    return parse_json_object(data, str(path))


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse an object that says two things under one name: readers differ in which one wins."""
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the name {key[:80]!r} occurs twice")
            seen.add(key)
    return result
