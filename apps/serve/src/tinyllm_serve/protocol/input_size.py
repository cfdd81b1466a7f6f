"""The size of input, in characters and values."""

from collections.abc import Iterable, Mapping

from pydantic import BaseModel


def is_larger(given: object, limit: int, *, per_value: int) -> bool:
    """Return True if texts and values add up to more than `limit`. No more than that are counted.

    A value counts as `per_value` characters, and a text as its own characters too.
    """
    left, waiting = limit, [iter((given,))]
    while waiting:
        value = next(waiting[-1], waiting)
        if value is waiting:
            waiting.pop()
            continue
        left -= per_value + (len(value) if isinstance(value, str) else 0)
        if left < 0:
            return True
        children = _children(value)
        if children is not None:
            waiting.append(iter(children))
    return False


def _children(value: object) -> Iterable[object] | None:
    match value:
        case BaseModel():
            return vars(value).values()
        case Mapping():
            return (part for item in value.items() for part in item)
        case list():
            return value
    return None
