"""JSON with one measured row a line."""

import json


def json_text(value: object, indent: int = 0) -> str:
    """Return JSON in which an object without inner objects takes one line.

    Args:
        value: what `json.dumps` accepts.
        indent: the spaces before the last line.
    """
    inner = " " * (indent + 1)
    if isinstance(value, dict) and not all(_is_short(each) for each in value.values()):
        lines = [
            f"{inner}{json.dumps(name)}: {json_text(each, indent + 1)}"
            for name, each in value.items()
        ]
    elif isinstance(value, list | tuple) and not _is_short(value):
        lines = [inner + json_text(each, indent + 1) for each in value]
    else:
        return json.dumps(value)
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n" + ",\n".join(lines) + f"\n{' ' * indent}{last}"


def _is_short(value: object) -> bool:
    """Return True for scalars and for lists of scalars."""
    if isinstance(value, list | tuple):
        return not any(isinstance(each, dict | list | tuple) for each in value)
    return not isinstance(value, dict)
